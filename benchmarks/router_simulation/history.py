"""What became of each request, and a fingerprint of all that happened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from quire.v1 import common_pb2


@dataclass(slots=True)
class Outcome:
    """One request as its caller saw it. Times are in seconds of the simulation."""

    arrived: float
    token_ids: list[int] = field(default_factory=list)
    first: float = 0.0
    ended: float = 0.0
    finals: int = 0
    aborted: bool = False
    error: str = ""  # reason
    cached_tokens: int = 0
    oracle_tokens: int = 0  # that an endless cache would have had
    workers: list[str] = field(default_factory=list)  # that it arrived at


class History:
    """Outcomes by request number."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._hash = hashlib.blake2b(digest_size=4)

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._hash.hexdigest()

    def note(self, *what: object) -> None:
        """Something happened."""
        self._hash.update(repr(what).encode())

    def take(self, now: float, number: int, delta: common_pb2.GenerationDelta) -> None:
        """A delta has reached the caller."""
        outcome = self.outcomes[number]
        self.note("delta", now, number, len(delta.token_ids), delta.is_final)
        if delta.token_ids and not outcome.token_ids:
            outcome.first = now
        outcome.token_ids += delta.token_ids
        if delta.is_final:
            outcome.ended = now
            outcome.finals += 1
            outcome.error = delta.error.reason if delta.HasField("error") else ""
            outcome.cached_tokens = delta.usage.cached_prompt_tokens
