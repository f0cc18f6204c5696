"""Waiting sequences in the order of the policy."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine_svc.requests.sequence import Sequence


def _reversed_order(sequence: Sequence) -> tuple[int, int, int]:
    rank, arrival, choice = sequence.order
    return -rank, -arrival, -choice


class WaitingQueue:
    """Sorted by `Sequence.order`; the first one stands at the list's end, where it is cheap to take away."""

    def __init__(self) -> None:
        self._entries: list[Sequence] = []
        self.num_uncomputed_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._entries)

    def at(self, index: int) -> Sequence:
        """Who is served next (0), or after so many others."""
        return self._entries[-1 - index]

    def push(self, sequence: Sequence) -> None:
        """Takes its place."""
        insort(self._entries, sequence, key=_reversed_order)
        self.num_uncomputed_tokens += sequence.num_uncomputed_tokens

    def remove(self, sequence: Sequence) -> None:
        """Leaves, from wherever it stands. Its computed tokens must not have changed since it was pushed."""
        if self._entries[-1] is sequence:
            self._entries.pop()
        else:
            self._entries.remove(sequence)
        self.num_uncomputed_tokens -= sequence.num_uncomputed_tokens

    def last_holder(self) -> Sequence | None:
        """The last in order that holds blocks: of the sequence it was forked from, or from elsewhere."""
        return next((sequence for sequence in self._entries if len(sequence.table)), None)
