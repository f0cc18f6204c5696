"""Hands out what the ranks guess, always as much: no controller decides that it is not worth it."""

from __future__ import annotations

from collections import Counter

from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.drafter import Drafter


class RankDrafter(Drafter):
    """Counts what became of it.

    Attributes:
        pauses: steps in which nothing is wanted; may be changed at any time.
        drafts: tokens verified, and "right": of these, those that were right.
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
    """Knows what was guessed behind which tokens."""

    def __init__(self) -> None:
        super().__init__(3)
        self.guesses: dict[tuple[int, ...], list[int]] = {}

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        super().take(sequence, token_ids)
        self.guesses[tuple(sequence.token_ids)] = token_ids
