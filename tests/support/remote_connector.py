"""A connector to a remote store, here a dictionary, whose transfers end some steps later, in part, or never."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.movable import Copies, Movable
from engine_svc.executor.uniproc import UniprocExecutor
from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.plan import BlockTransfer, CacheSize, EndedTransfer, Transfers

MakeStore = Callable[[Any], BlockStore]


@dataclass(frozen=True)
class Fare:
    """What happens to a transfer."""

    steps: int | None = 2  # steps after which it ends; None means never by itself
    most: int = 1_000_000  # how many of its first blocks are moved
    lingers: int = 0  # steps that it continues after it is canceled


@dataclass
class Remote:
    """The remote store: blocks by place; workers may share it."""

    wait_seconds: float = 1e9
    load: Callable[[int], Fare] = lambda key: Fare()
    save: Callable[[int], Fare] = lambda key: Fare()
    blocks: dict[bytes, Any] = field(default_factory=dict)
    num_brought: int = 0  # blocks, so far


def place_of(name: BlockName) -> bytes:
    """Where the remote store keeps a block."""
    return name.block_hash + str(name.group).encode()


class RemoteConnector(KvConnector):
    """Saves every block that is computed, and makes sequences wait for blocks that the store has."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._saves: list[BlockTransfer] = []
        self._loads: list[BlockTransfer] = []
        self._cancelled: list[int] = []
        self._own: set[bytes] = set()  # places of blocks that this worker has saved or is saving
        self._saving: dict[int, Sequence[bytes]] = {}
        self.ends: list[EndedTransfer] = []

    def has(self, name: BlockName) -> bool:
        return place_of(name) in self._remote.blocks

    def wait_seconds(self, names: Sequence[BlockName]) -> float:
        return self._remote.wait_seconds

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        assert key
        self._loads.append(BlockTransfer(list(block_ids), list(map(place_of, names)), key))

    def wants(self, names: Sequence[BlockName]) -> Sequence[int]:
        there = self._remote.blocks.keys() | self._own
        return [index for index, name in enumerate(names) if place_of(name) not in there]

    def save(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        assert key
        places = list(map(place_of, names))
        self._own.update(places)
        self._saving[key] = places
        self._saves.append(BlockTransfer(list(block_ids), places, key))

    def is_saved(self, name: BlockName) -> bool:
        return place_of(name) in self._remote.blocks

    def cancel(self, key: int) -> None:
        self._cancelled.append(key)

    def take_transfers(self) -> Transfers:
        transfers = Transfers(self._saves, self._loads, self._cancelled)
        self._saves, self._loads, self._cancelled = [], [], []
        return transfers

    def ended(self, ends: Sequence[EndedTransfer]) -> Sequence[EndedTransfer]:
        for end in ends:
            self.ends.append(end)
            self._own -= set(self._saving.pop(end.key, ())[end.num_blocks :])
        return ends

    def clear(self) -> None:
        for block_hash in self._own:
            self._remote.blocks.pop(block_hash, None)
        self._own.clear()


@dataclass
class _Job:
    transfer: BlockTransfer
    is_save: bool
    most: int
    left: int | None


class RemoteStore(BlockStore):
    """Overwrites a load's blocks with nonsense in every step until it has ended: nothing else may use them."""

    def __init__(
        self,
        remote: Remote,
        read: Callable[[int], Any],
        write: Callable[[int, Any], None],
        spoil: Callable[[int], None],
    ) -> None:
        self._remote = remote
        self._read, self._write, self._spoil = read, write, spoil
        self._jobs: dict[int, _Job] = {}
        self._ended: list[EndedTransfer] = []

    def begin(self, transfers: Transfers) -> None:
        for is_save, added in ((True, transfers.saves), (False, transfers.loads)):
            for transfer in added:
                fare = (self._remote.save if is_save else self._remote.load)(transfer.key)
                self._jobs[transfer.key] = _Job(transfer, is_save, fare.most, fare.steps)
        for key in transfers.cancelled:
            self._cancel(key)
        for key, job in list(self._jobs.items()):
            self._get_on(key, job)

    def take_ended(self) -> list[EndedTransfer]:
        ended, self._ended = self._ended, []
        return ended

    def _cancel(self, key: int) -> None:
        job = self._jobs.get(key)
        if job is None:
            self._ended.append(EndedTransfer(key, 0))
        else:
            job.most, job.left = 0, self._remote.load(key).lingers

    def _get_on(self, key: int, job: _Job) -> None:
        if not job.is_save:
            for block in job.transfer.block_ids:
                self._spoil(block)
        if job.left is None:
            return
        job.left -= 1
        if job.left < 0:
            del self._jobs[key]
            self._ended.append(EndedTransfer(key, self._move(job)))

    def _move(self, job: _Job) -> int:
        pairs = list(zip(job.transfer.block_ids, map(bytes, job.transfer.places), strict=True))[: job.most]
        for count, (block, block_hash) in enumerate(pairs):
            if job.is_save:
                self._remote.blocks[block_hash] = self._read(block)
            elif block_hash in self._remote.blocks:
                self._write(block, self._remote.blocks[block_hash])
                self._remote.num_brought += 1
            else:
                return count
        return len(pairs)


def list_store(remote: Remote, nonsense: Any) -> MakeStore:
    """Makes stores for a cache that is like a list of blocks, which may be lists."""

    def make(cache: Any) -> BlockStore:
        def write(block: int, contents: Any) -> None:
            cache[block] = copy(contents)

        return RemoteStore(remote, lambda block: copy(cache[block]), write, lambda block: write(block, nonsense))

    return make


class RemoteExecutor(UniprocExecutor):
    """One rank in this process, with the store of a remote connector."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote = remote

    def allocate(self, size: CacheSize) -> None:
        super().allocate(size)
        self._loaded().runner.connect(self._make_store)

    def _make_store(self, device: Movable) -> BlockStore:
        def spoil(number: int) -> None:
            for part in itertools.chain(*(nonsense := device.on_host([number]))):
                part.fill_(torch.nan)
            device.put(nonsense, [number])

        def write(number: int, contents: Copies) -> None:
            device.put(contents, [number])

        return RemoteStore(self._remote, lambda number: device.on_host([number]), write, spoil)
