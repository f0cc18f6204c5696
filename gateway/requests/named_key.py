"""What the requests of a named API key may use, and have used."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator

from gateway.requests.token_bucket import TokenBucket
from quire.api_keys import ApiKey
from quire.errors import InvalidRequest, QuireError, RateLimited


class NamedKey:
    """A key of `--api-key-file`.

    Attributes:
        entry: the key and its limits as last read from the file.
        requests, prompt_tokens, generation_tokens: used so far.
        refused: requests refused, by the limit that they had reached.
    """

    def __init__(self, entry: ApiKey, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: returns the time in seconds.
        """
        self.entry = entry
        self.requests = self.prompt_tokens = self.generation_tokens = 0
        self.refused: Counter[str] = Counter()
        self._clock = clock
        self._running = 0
        self._request_bucket = self._resized(None, entry.requests_per_minute)
        self.token_bucket = self._resized(None, entry.tokens_per_minute)

    def change(self, entry: ApiKey) -> None:
        """Replaces the limits; what has been used still counts."""
        self.entry = entry
        self._request_bucket = self._resized(self._request_bucket, entry.requests_per_minute)
        self.token_bucket = self._resized(self.token_bucket, entry.tokens_per_minute)

    def _resized(self, bucket: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return TokenBucket(per_minute, self._clock)
        bucket.resize(per_minute)
        return bucket

    def admit(self) -> Admission:
        """Admits an HTTP request, before its body is read.

        Raises:
            RateLimited: the key has used up a limit. Of tokens, at least one must remain.
        """
        most = self.entry.max_concurrent_requests
        if most is not None and self._running >= most:
            raise self.refusal("concurrent_requests", f"already has {self._running} requests in progress", most, 1.0)
        for name, bucket in (("requests", self._request_bucket), ("tokens", self.token_bucket)):
            if bucket and (seconds := bucket.seconds_until(1)):
                raise self.refusal(name, f"has used up its {name}", bucket.per_minute, seconds)
        if self._request_bucket:
            self._request_bucket.take(1)
        self.requests += 1
        self._running += 1
        return Admission(self, self._leave)

    def _leave(self) -> None:
        self._running -= 1

    def refusal(self, limit: str, why: str, most: int, seconds: float) -> RateLimited:
        """Counts a refused request, and returns its error.

        Args:
            limit: what is limited.
            seconds: time after which the request may be sent again.
        """
        self.refused[limit] += 1
        field = f"max_{limit}" if limit == "concurrent_requests" else f"{limit}_per_minute"
        return RateLimited(
            f"This API key {why}: its limit {field} is {most}. Try again in {math.ceil(seconds)} s.",
            retry_after_seconds=seconds,
        )

    def priority(self, asked: int) -> int:
        """Returns the priority of a request. One that asks for none (0) gets the most urgent one that it may have.

        Raises:
            InvalidRequest: it asks for a more urgent one.
        """
        most_urgent = self.entry.max_priority
        if asked == 0:
            return max(0, most_urgent)
        if asked < most_urgent:
            self.refused["priority"] += 1
            raise InvalidRequest(
                f"priority is {asked}, which is more urgent than this API key's requests may be (lower numbers are "
                f"more urgent): ask for {most_urgent} or more, or leave it out.",
                parameter="priority",
            )
        return asked

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an answer, under OpenAI's names: of each limit, what it is, what remains of it, and when all of it
        will be there again."""
        found = {}
        for name, bucket in (("requests", self._request_bucket), ("tokens", self.token_bucket)):
            if bucket:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining)
                found[f"x-ratelimit-reset-{name}"] = f"{bucket.seconds_until_full:.3f}s"
        return found


class Admission:
    """One HTTP request of a named key. It counts as running until it has ended, and so has all that it started."""

    def __init__(self, key: NamedKey, leave: Callable[[], None]) -> None:
        """
        Args:
            leave: called once, when it no longer runs.
        """
        self.key = key
        self._leave = leave
        self._holders = 1  # the HTTP request, and the reservations that are not settled
        self._has_reserved = False

    def reserve(self, prompt_tokens: int, output_tokens: int = 0, *, may_shrink: bool = False) -> Reservation:
        """Reserves tokens for a part of the request that is about to run. Only the first part is refused: later, what
        has been computed for the request would be lost.

        Args:
            prompt_tokens, output_tokens: at most.
            may_shrink: whether the request has not asked for this many output tokens. Fewer are reserved if a full
                bucket does not hold them.

        Raises:
            InvalidRequest: a full bucket does not hold the tokens.
            RateLimited: they are not there now.
        """
        tokens, bucket = prompt_tokens + output_tokens, self.key.token_bucket
        if bucket:
            if may_shrink:
                tokens = min(tokens, max(prompt_tokens, bucket.per_minute))
            if not self._has_reserved:
                self._check(bucket, tokens, "max_tokens" if prompt_tokens <= bucket.per_minute else "prompt")
            bucket.take(tokens)
        self._has_reserved = True
        self._holders += 1
        return Reservation(self, bucket, tokens)

    def _check(self, bucket: TokenBucket, tokens: int, parameter: str) -> None:
        if tokens > bucket.per_minute:
            self.key.refused["tokens"] += 1
            raise InvalidRequest(
                f"The request may use {tokens} tokens (its prompts, and max_tokens for each choice), more than this "
                f"API key's limit tokens_per_minute, {bucket.per_minute}, ever allows: shorten the prompts, or lower "
                "max_tokens or n.",
                parameter=parameter,
            )
        if seconds := bucket.seconds_until(tokens):
            why = f"has {bucket.remaining} tokens left, and the request may use {tokens}"
            raise self.key.refusal("tokens", why, bucket.per_minute, seconds)

    @contextlib.contextmanager
    def reserved(self, tokens: int) -> Iterator[None]:
        """Context in which a request without outputs runs; raises as `reserve`. If it fails, it has used nothing."""
        reservation, used = self.reserve(tokens), tokens
        try:
            yield
        except QuireError:
            used = 0
            raise
        finally:
            reservation.settle(used, 0)

    def end(self) -> None:
        """Called when the HTTP request, or a part of it, has ended."""
        self._holders -= 1
        if not self._holders:
            self._leave()


class Reservation:
    """Tokens reserved for a part of a request."""

    def __init__(self, admission: Admission, bucket: TokenBucket | None, tokens: int) -> None:
        self._admission, self._bucket, self._tokens = admission, bucket, tokens

    def settle(self, prompt_tokens: int, generation_tokens: int) -> None:
        """Ends the part, which has used these tokens: gives back the others, or takes those that are missing."""
        key = self._admission.key
        key.prompt_tokens += prompt_tokens
        key.generation_tokens += generation_tokens
        if self._bucket:
            self._bucket.take(prompt_tokens + generation_tokens - self._tokens)
        self._admission.end()
