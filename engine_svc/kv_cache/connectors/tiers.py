"""Several places that keep KV blocks, from near to far: this worker's host memory, and connectors to other workers.

What the device evicts goes to host memory, and what is computed to each of the others that wants it. A block is loaded
from the nearest place that has it. The transfers of a place have keys that tell whose they are, so that the store on
each rank (block_stores/tiers.py) can hand them on; a load or save has ended when those of all places have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.plan import EndedTransfer, Transfers


@dataclass
class _UnderWay:
    """A load or save whose blocks are divided among places."""

    num_blocks: int
    parts: dict[int, list[int]] = field(default_factory=dict)  # place → its blocks' indices; those not yet ended

    def end(self, place: int, num_moved: int) -> None:
        """Notes that a place has moved so many of its first blocks: `num_blocks` become those without a gap."""
        indices = self.parts.pop(place)
        if num_moved < len(indices):
            self.num_blocks = min(self.num_blocks, indices[num_moved])


class Tiers(KvConnector):
    """Joins connectors to one."""

    def __init__(self, places: Sequence[KvConnector]) -> None:
        """
        Args:
            places: from near to far. Only the first may be memory of this worker's own.
        """
        self._places = places
        self._memory = places[0].memory
        self._others = list(enumerate(places))[self._memory is not None :]
        self.recorder = places[0].recorder
        self._under_way: dict[int, _UnderWay] = {}
        self._wanted: dict[int, set[BlockName]] = {}  # by place, of the names asked about last

    @property
    def memory(self) -> KvConnector | None:
        """See KvConnector.memory."""
        return self._memory

    @property
    def num_blocks(self) -> int:
        """See KvConnector.num_blocks."""
        return self._places[0].num_blocks

    @property
    def num_used_blocks(self) -> int:
        """See KvConnector.num_used_blocks."""
        return self._places[0].num_used_blocks

    def expect(self, hashes: Sequence[bytes], source: str) -> None:
        """See KvConnector.expect."""
        for each in self._places:
            each.expect(hashes, source)

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return any(each.has(name) for each in self._places)

    def num_leading(self, hashes: Sequence[bytes], group: int) -> int:
        """See KvConnector.num_leading."""
        count = 0
        while count < len(hashes):
            more = next(filter(None, (each.num_leading(hashes[count:], group) for each in self._places)), 0)
            if not more:
                break
            count += more
        return count

    def wait_seconds(self, names: Sequence[BlockName]) -> float | None:
        """See KvConnector.wait_seconds: as long as for one of them, as all are asked at once."""
        awaited = [name for name in names if not self._is_near(name)]
        if not awaited:
            return None
        return max(seconds for _, each in self._others if (seconds := each.wait_seconds(awaited)) is not None)

    def pin(self, names: Sequence[BlockName]) -> None:
        """See KvConnector.pin."""
        if self._memory is not None:
            self._memory.pin([name for name in names if self._is_near(name)])

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """See KvConnector.load. What is near is copied at once, and kept for the sequence until the rest has come."""
        parts = self._divide(names)
        if key:
            awaited = {place: indices for place, indices in parts.items() if not self._is_memory(place)}
            self._under_way[key] = _UnderWay(len(names), awaited)
        for place, indices in parts.items():
            self._places[place].load(
                0 if self._is_memory(place) else self._key(key, place),
                [names[index] for index in indices], [block_ids[index] for index in indices],
            )  # fmt: skip

    def _divide(self, names: Sequence[BlockName]) -> dict[int, list[int]]:
        """For each place, the indices of the blocks of which it is the nearest; the last has what is nowhere else."""
        parts: dict[int, list[int]] = {}
        *nearer, last = enumerate(self._places)
        for index, name in enumerate(names):
            place = next((number for number, each in nearer if each.has(name)), last[0])
            parts.setdefault(place, []).append(index)
        return parts

    def keep(self, name: BlockName, block_id: int) -> None:
        """See KvConnector.keep."""
        if self._memory is not None:
            self._memory.keep(name, block_id)

    def wants(self, names: Sequence[BlockName]) -> Sequence[int]:
        """See KvConnector.wants."""
        self._wanted = {place: {names[index] for index in each.wants(names)} for place, each in self._others}
        wanted = set().union(*self._wanted.values())
        return [index for index, name in enumerate(names) if name in wanted]

    def save(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """See KvConnector.save."""
        parts = {
            place: [index for index, name in enumerate(names) if name in wanted]
            for place, wanted in self._wanted.items()
            if not wanted.isdisjoint(names)
        }
        self._under_way[key] = _UnderWay(len(names), parts)
        for place, indices in parts.items():
            self._places[place].save(
                self._key(key, place), [names[index] for index in indices], [block_ids[index] for index in indices]
            )

    def is_saved(self, name: BlockName) -> bool:
        """See KvConnector.is_saved."""
        return all(each.is_saved(name) for each in self._places)

    def cancel(self, key: int) -> None:
        """See KvConnector.cancel."""
        for place in self._under_way[key].parts:
            self._places[place].cancel(self._key(key, place))

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers."""
        taken = [each.take_transfers() for each in self._places]
        return Transfers(
            saves=[save for each in taken for save in each.saves],
            loads=[load for each in taken for load in each.loads],
            cancelled=[key for each in taken for key in each.cancelled],
        )

    def ended(self, ends: Sequence[EndedTransfer]) -> Sequence[EndedTransfer]:
        """See KvConnector.ended."""
        whole = []
        for end in ends:
            key, place = divmod(end.key, len(self._places))
            self._places[place].ended([end])
            transfer = self._under_way.get(key)
            if transfer is None or place not in transfer.parts:  # its end crossed with a cancellation
                continue
            transfer.end(place, end.num_blocks)
            if not transfer.parts:
                del self._under_way[key]
                whole.append(EndedTransfer(key, transfer.num_blocks))
        return whole

    def clear(self) -> None:
        """See KvConnector.clear."""
        for each in self._places:
            each.clear()

    def hashes(self) -> list[bytes]:
        """See KvConnector.hashes."""
        return self._places[0].hashes()

    def check(self) -> None:
        """See KvConnector.check."""
        for each in self._places:
            each.check()

    def _is_memory(self, place: int) -> bool:
        return place == 0 and self._memory is not None

    def _is_near(self, name: BlockName) -> bool:
        return self._memory is not None and self._memory.has(name)

    def _key(self, key: int, place: int) -> int:
        """The key of a place's part of a transfer: see Tiers in block_stores/tiers.py."""
        return key * len(self._places) + place


def joined(connectors: Sequence[KvConnector]) -> KvConnector | None:
    """One connector in place of several; None if there are none."""
    return Tiers(connectors) if len(connectors) > 1 else next(iter(connectors), None)
