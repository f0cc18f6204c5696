"""The text of live choices: tokens go to the tokenizer service, and text comes back.

Each choice is at one replica of that service. If the replica is lost, the choice continues at another one, or at the
same one once it is back: the service is told which tokens of the choice were already answered, gets the later ones
again, and continues exactly where the lost session stood.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.answers.deltas import ChoiceUpdate
from gateway.requests.state import ChoiceState
from gateway.requests.statistics import RequestStatistics
from gateway.services.convert import to_update, token_by_token
from gateway.services.tokenizers import TextFrame, TokenizerReplica, Tokenizers
from quire.errors import DeadlineExceeded, Internal, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.sampling import from_marks
from quire.v1 import common_pb2, tokenizer_pb2

logger = logging.getLogger(__name__)

# Number of trailing prompt tokens sent to the tokenizer service as context for the first token's spacing.
_PROMPT_TAIL = 6
# If a choice's text does not resume within this time after a loss, its request fails. A restarted service takes some
# seconds on a busy machine.
RESUME_SECONDS = 30.0
_RETRY_SECONDS = 0.02
# How many choices are moved at a time: for each, the service reads its history and processes some of it, which delays
# the text of others (by 0.15 s at most when 2,000 choices of 4,000 tokens move; with 64 at a time it was 0.4 s).
_REOPENED_AT_ONCE = 32


@dataclass(slots=True, eq=False)
class _ChoiceText:
    """The text of one choice. `pending` holds the deltas that have no text yet, in order."""

    choice: ChoiceState
    replica: TokenizerReplica | None = None  # current replica
    number: int = 0  # in the session with that replica
    # By when its text must have resumed, on the monotonic clock; None while nothing is wrong.
    deadline: float | None = None
    pending: deque[common_pb2.GenerationDelta] = field(default_factory=deque)


class Texts:
    """Owns the text of all live choices. Used from the event loop only.

    Contract: the tokens of each choice are passed to `on_update` exactly once and in order, with their text; deltas
    that waited for a replica are merged into one. A choice that cannot continue fails its request. A choice has a
    different number at each replica, so that text of an earlier session is never taken for a later one's.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
        on_update: Callable[[ChoiceState, ChoiceUpdate], None],
    ) -> None:
        self.replicas = Tokenizers(addresses, security, self._on_frame, self._on_lost)
        self._statistics = statistics
        self._on_update = on_update
        self._open: dict[ChoiceState, _ChoiceText] = {}
        self._placed: dict[int, _ChoiceText] = {}  # by number
        self._waiting: dict[_ChoiceText, None] = {}
        self._some_wait = asyncio.Event()
        self._ids = itertools.count(1)

    @property
    def num_open(self) -> int:
        """Number of open choices."""
        return len(self._open)

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        await asyncio.gather(self.replicas.run(), self._serve_waiting())

    def open(self, choice: ChoiceState) -> None:
        """Opens a choice for detokenization.

        Raises:
            Overloaded: too much is queued for the tokenizer service.
        """
        text = _ChoiceText(choice)
        placed = self._place(text)
        self._open[choice] = text
        if not placed:
            self._wait(text)

    def add(self, choice: ChoiceState, delta: common_pb2.GenerationDelta) -> None:
        """Sends a delta's tokens to be detokenized; ignored if the choice is closed."""
        text = self._open.get(choice)
        if text is None:
            return
        if text.replica is None and text.pending:
            text.pending[-1].MergeFrom(delta)
            return
        parts = _parts(choice, delta)
        text.pending += parts
        if text.replica is not None:
            _send(text.replica, text, parts)

    def close(self, choice: ChoiceState) -> None:
        """Forgets a choice, whether it has ended or not."""
        text = self._open.pop(choice, None)
        if text is None:
            return
        self._waiting.pop(text, None)
        number, replica = text.number, self._take_away(text)
        if replica and not choice.ended:
            replica.close(number)

    def _place(self, text: _ChoiceText) -> bool:
        """Opens the choice, with its progress so far, at a replica; returns False if none is up.

        Raises:
            Overloaded: too much is queued for that replica.
        """
        replica = self.replicas.pick()
        if replica is None:
            return False
        number = next(self._ids)
        replica.open(_opening(text, number))
        replica.live += 1
        text.replica, text.number = replica, number
        self._placed[number] = text
        if not text.pending:
            text.deadline = None
        text.pending = deque(part for delta in text.pending for part in _parts(text.choice, delta))
        _send(replica, text, tuple(text.pending))
        return True

    def _take_away(self, text: _ChoiceText) -> TokenizerReplica | None:
        """Detaches the choice from its replica; returns that replica, or None if it had none."""
        replica, text.replica = text.replica, None
        if replica is not None:
            del self._placed[text.number]
            replica.live -= 1
        return replica

    def _wait(self, text: _ChoiceText) -> None:
        """Queues the choice until a replica is up; merges its pending deltas into one."""
        if text.deadline is None:
            text.deadline = min(text.choice.stream.deadline, time.monotonic() + RESUME_SECONDS)
        while len(text.pending) > 1:
            last = text.pending.pop()
            text.pending[-1].MergeFrom(last)
        self._waiting[text] = None
        self._some_wait.set()

    async def _serve_waiting(self) -> None:
        while True:
            await self._some_wait.wait()
            self._place_waiting()
            self._fail_late(time.monotonic())
            if not self._waiting:
                self._some_wait.clear()
            await asyncio.sleep(_RETRY_SECONDS)

    def _place_waiting(self) -> None:
        for text in list(itertools.islice(self._waiting, _REOPENED_AT_ONCE)):
            try:
                if not self._place(text):
                    return
            except QuireError:
                return
            del self._waiting[text]

    def _fail_late(self, now: float) -> None:
        for text in [text for text in self._waiting if now >= (text.deadline or 0.0)]:
            stream = text.choice.stream
            if now >= stream.deadline:
                error: QuireError = DeadlineExceeded("The request did not finish within its time limit.")
            else:
                error = Unavailable("The tokenizer service was lost. The answer is incomplete; send the request again.")
            stream.owner.fail(error)

    def _on_frame(self, frame: TextFrame) -> None:
        for delta in frame.deltas:
            text = self._placed.get(delta.stream_id)
            if text is None:
                continue
            if delta.error:
                text.choice.stream.owner.fail(Internal(delta.error))
                continue
            text.deadline = None
            self._on_update(text.choice, to_update(text.choice.index, text.pending.popleft(), delta))

    def _on_lost(self, replica: TokenizerReplica, error: QuireError) -> None:
        lost = [text for text in self._placed.values() if text.replica is replica]
        if lost:
            logger.warning(
                "tokenizer service %s is lost with %d sequences: %s", replica.address, len(lost), error.message
            )
        self._statistics.texts_moved += len(lost)
        for text in lost:
            self._take_away(text)
            self._wait(text)


def _opening(text: _ChoiceText, number: int) -> tokenizer_pb2.DetokenizeOpen:
    """Builds the message that opens the choice, with the tokens already answered as history."""
    choice = text.choice
    options = choice.stream.owner.request.detokenize
    answered = len(choice.delivered) - sum(len(delta.token_ids) for delta in text.pending)
    return tokenizer_pb2.DetokenizeOpen(
        stream_id=number,
        skip_special_tokens=options.skip_special_tokens,
        kept_special_tokens=options.kept_special_tokens,
        join_special_tokens=options.join_special_tokens,
        stop_strings=options.stop_strings,
        include_stop_string=options.include_stop_string,
        min_tokens=options.min_tokens,
        reasoning=from_marks(options.reasoning) if options.reasoning else None,
        prompt_tail_token_ids=choice.stream.prompt.token_ids[-_PROMPT_TAIL:],
        history_token_ids=choice.delivered[:answered],
    )


def _parts(choice: ChoiceState, delta: common_pb2.GenerationDelta) -> Sequence[common_pb2.GenerationDelta]:
    """Returns the deltas to detokenize separately: the delta as a whole, or one per token."""
    splits = choice.stream.owner.request.token_by_token and len(delta.token_ids) > 1 and delta.logprobs
    return tuple(token_by_token(delta)) if splits else (delta,)


def _send(replica: TokenizerReplica, text: _ChoiceText, deltas: Sequence[common_pb2.GenerationDelta]) -> None:
    for delta in deltas:
        _fill(replica.add(text.number, delta.ByteSize()), text.choice, delta)


def _fill(tokens: tokenizer_pb2.DetokenizeTokens, choice: ChoiceState, delta: common_pb2.GenerationDelta) -> None:
    tokens.token_ids.extend(delta.token_ids)
    if delta.finish_reason:
        tokens.is_last = True
        keeps = delta.ended_by_constraint or choice.stream.owner.request.detokenize.ends_with_stop_token
        tokens.drop_last_token = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not keeps
    for position in delta.logprobs:
        tokens.lookup_token_ids.extend(position.token_ids)
