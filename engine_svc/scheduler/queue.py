"""Waiting sequences in the order of the scheduling policy."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine_svc.requests.sequence import Sequence


def _reversed_order(sequence: Sequence) -> tuple[int, int, int]:
    rank, arrival, choice = sequence.order
    return -rank, -arrival, -choice


class WaitingQueue:
    """Sorted by `Sequence.order`; the first sequence is at the end of the list, where removal is cheap."""

    def __init__(self) -> None:
        self._entries: list[Sequence] = []
        self.num_uncomputed_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._entries)

    def at(self, index: int) -> Sequence:
        """The sequence at this position of the queue; 0 is the next to be served."""
        return self._entries[-1 - index]

    def push(self, sequence: Sequence) -> None:
        """Inserts a sequence at its place in the order."""
        insort(self._entries, sequence, key=_reversed_order)
        self.num_uncomputed_tokens += sequence.num_uncomputed_tokens

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence from any place. Its computed tokens must not have changed since it was pushed."""
        if self._entries[-1] is sequence:
            self._entries.pop()
        else:
            self._entries.remove(sequence)
        self.num_uncomputed_tokens -= sequence.num_uncomputed_tokens

    def last_holder(self) -> Sequence | None:
        """The last sequence in order that holds blocks, shared with its fork parent or loaded through a connector."""
        return next((sequence for sequence in self._entries if len(sequence.table)), None)
