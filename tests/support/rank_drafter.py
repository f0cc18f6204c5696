"""Proposes the ranks' draft tokens, always the same number: no controller turns drafting off when it does not pay."""

from __future__ import annotations

from collections import Counter

from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.drafter import Drafter


class RankDrafter(Drafter):
    """A drafter that counts verified draft tokens.

    Attributes:
        pauses: whether no draft tokens are wanted; may be changed at any time.
        drafts: number of draft tokens verified ("all"), and of those that were right ("right").
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._brought: dict[Sequence, tuple[int, tuple[int, ...]]] = {}
        self.pauses = False
        self.drafts: Counter[str] = Counter()
        self.failures: list[str] = []

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        seen, token_ids = self._brought.get(sequence, (-1, ()))
        return token_ids[:most] if seen == len(sequence.token_ids) else ()

    def wanted(self, sequence: Sequence, most: int) -> int:
        return 0 if self.pauses or self.failures else min(self._most, most)

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        self._brought[sequence] = len(sequence.token_ids), tuple(token_ids)

    def verified(self, sequence: Sequence, num_drafts: int, num_right: int, num_tokens: int) -> None:
        self.drafts.update(all=num_drafts, right=num_right)

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


class NotedGuesses(RankDrafter):
    """Remembers which draft tokens followed which tokens."""

    def __init__(self) -> None:
        super().__init__(3)
        self.guesses: dict[tuple[int, ...], list[int]] = {}

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        super().take(sequence, token_ids)
        self.guesses[tuple(sequence.token_ids)] = token_ids
