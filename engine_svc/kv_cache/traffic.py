"""Counts what moves between the device and the other places that keep blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.plan import BlockTransfer, EndedTransfer, Transfers


class Traffic:
    """Bytes that each rank moves, under the names of the engine's counters.

    What leaves for this worker's host memory, or comes from there, counts as its step begins; what leaves for storage
    or comes from there, as far as it has moved when its transfer ends.
    """

    def __init__(self, facts: KvCacheFacts) -> None:
        self._facts = facts
        self._moved: Counter[str] = Counter()
        self._under_way: dict[int, tuple[str, BlockTransfer]] = {}  # by key

    @property
    def counters(self) -> Mapping[str, int]:
        """Bytes by the name of a field of Counters."""
        return self._moved

    def begin(self, transfers: Transfers) -> None:
        """Notes transfers that a step begins with."""
        for direction, begun in (("saved", transfers.saves), ("loaded", transfers.loads)):
            for transfer in begun:
                if transfer.key:
                    self._under_way[transfer.key] = (f"storage_{direction}_bytes", transfer)
                else:
                    self._count(f"host_{direction}_bytes", transfer.block_ids)

    def end(self, ends: Sequence[EndedTransfer]) -> None:
        """Notes ends of transfers, as reported by the store; those of which nothing has begun count for nothing."""
        for end in ends:
            if begun := self._under_way.pop(end.key, None):
                name, transfer = begun
                self._count(name, transfer.block_ids[: end.num_blocks])

    def _count(self, name: str, numbers: Sequence[int]) -> None:
        num_blocks = sum(number < self._facts.num_blocks for number in numbers)
        num_states = len(numbers) - num_blocks
        self._moved[name] += num_blocks * self._facts.block_bytes + num_states * self._facts.snapshot_bytes
