"""A block store that keeps blocks as files in a folder that several workers share."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.block_stores.movable import Copies, Items, Movable
from engine_svc.plan import BlockTransfer, EndedTransfer, Transfers
from engine_svc.transfer import Arrival
from quire.errors import StartupError
from quire.options.kv_transfer import KvTransferConfig

logger = logging.getLogger(__name__)

# Host memory for blocks that wait to be written. If storage is slower than the model, further ones are not saved.
_MOST_WAITING_BYTES = 512 * 2**20
# A load is read in pieces of this size, each while the one before it is copied to the device.
_PIECE_BYTES = 64 * 2**20
_THREADS = 2  # that read, and as many that write
_SILENT_SECONDS = 60.0  # between two warnings that blocks cannot be written


class Blocks(Protocol):
    """What a rank's device has blocks of, as bytes. What takes long is left to other threads than the caller's."""

    def num_bytes(self, block_id: int) -> int:
        """Size of a block."""

    def leave(self, block_ids: Sequence[int]) -> Callable[[], Iterator[Iterable[memoryview]]]:
        """Copies blocks from the device, in the order of its stream.

        Returns:
            A function, for another thread, that waits for the copies and yields each block in parts. The device's
            blocks may be changed at once.
        """

    def enter(self, contents: Sequence[bytearray], block_ids: Sequence[int]) -> Callable[[], None]:
        """Prepares blocks for the device's blocks with these ids; may be called in another thread.

        Returns:
            A function that copies them to the device, in the order of its stream.
        """


@dataclass(frozen=True)
class _Piece:
    """Blocks that have been read."""

    num_blocks: int
    is_whole: bool  # as many as were asked for; otherwise one is missing
    enter: Callable[[], None]


@dataclass
class _Load:
    """A load under way."""

    transfer: BlockTransfer
    reading: Future[_Piece]
    num_blocks: int = 0  # that have arrived


class SharedStorage(BlockStore):
    """Threads read and write the files; blocks are copied from and to the device between steps.

    A save has ended once its blocks have been copied from the device: whether they are ever written makes a difference
    only to those who look for the files.
    """

    def __init__(self, blocks: Blocks, files: BlockFiles, readers: Executor, writers: Executor) -> None:
        self._blocks = blocks
        self._files = files
        self._readers, self._writers = readers, writers
        self._loads: dict[int, _Load] = {}
        self._ended: list[EndedTransfer] = []
        self._counting = threading.Lock()
        self._waiting_bytes = 0
        self._warned_at = -_SILENT_SECONDS

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin."""
        for save in transfers.saves:
            if save.key not in transfers.cancelled:
                self._save(save)
        for load in transfers.loads:
            self._loads[load.key] = _Load(load, self._read_on(load, 0))
        for key in transfers.cancelled:
            if given_up := self._loads.pop(key, None):
                given_up.reading.cancel()
            self._ended.append(EndedTransfer(key, 0))
        for load_under_way in [load for load in self._loads.values() if load.reading.done()]:
            self._get_on(load_under_way)

    def take_ended(self) -> list[EndedTransfer]:
        """See BlockStore.take_ended."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Writes what waits; loads under way are given up."""
        self._loads.clear()
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown()

    def _save(self, save: BlockTransfer) -> None:
        """Saves as many of the first blocks as there is room for."""
        count = self._fitting(save.block_ids, _MOST_WAITING_BYTES - self._waiting_bytes)
        self._ended.append(EndedTransfer(save.key, count))
        if count:
            size = sum(map(self._blocks.num_bytes, save.block_ids[:count]))
            self._count(size)
            copies = self._blocks.leave(save.block_ids[:count])
            self._writers.submit(self._write, list(map(_name, save.places[:count])), copies, size, time.time_ns())

    def _fitting(self, block_ids: Sequence[int], most_bytes: int) -> int:
        """How many of the first blocks have at most so many bytes."""
        sizes = itertools.accumulate(map(self._blocks.num_bytes, block_ids))
        return sum(1 for _ in itertools.takewhile(lambda size: size <= most_bytes, sizes))

    def _write(
        self,
        places: Sequence[str],
        copies: Callable[[], Iterator[Iterable[memoryview]]],
        size: int,
        computed_ns: int,
    ) -> None:
        try:
            for place, parts in zip(places, copies(), strict=True):
                self._files.write(place, parts, computed_ns)
        except OSError as error:
            if time.monotonic() - self._warned_at > _SILENT_SECONDS:
                self._warned_at = time.monotonic()
                logger.warning("KV blocks cannot be written to shared storage: %s", error)
        finally:
            self._count(-size)

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self._waiting_bytes += num_bytes

    def _read_on(self, load: BlockTransfer, first: int) -> Future[_Piece]:
        """Starts reading the next piece, from block `first` on."""
        block_ids = load.block_ids[first:]
        count = max(1, self._fitting(block_ids, _PIECE_BYTES))
        return self._readers.submit(self._read, list(map(_name, load.places[first : first + count])), block_ids[:count])

    def _read(self, places: Sequence[str], block_ids: Sequence[int]) -> _Piece:
        sizes = map(self._blocks.num_bytes, block_ids)
        contents = list(itertools.takewhile(lambda content: content is not None, map(self._files.read, places, sizes)))
        found = [content for content in contents if content is not None]
        return _Piece(len(found), len(found) == len(places), self._blocks.enter(found, block_ids[: len(found)]))

    def _get_on(self, load: _Load) -> None:
        """Copies a piece to the device, and starts reading the next one."""
        piece = load.reading.result()
        load.num_blocks += piece.num_blocks
        if piece.is_whole and load.num_blocks < len(load.transfer.block_ids):
            load.reading = self._read_on(load.transfer, load.num_blocks)
        else:
            del self._loads[load.transfer.key]
            self._ended.append(EndedTransfer(load.transfer.key, load.num_blocks))
        piece.enter()


class MovableBlocks:
    """Blocks of KV caches and saved states; see Blocks. The bytes of one are those of its parts, in order."""

    def __init__(self, device: Movable) -> None:
        self._device = device

    def num_bytes(self, block_id: int) -> int:
        """See Blocks.num_bytes."""
        return self._device.items_of(block_id).num_bytes

    def leave(self, block_ids: Sequence[int]) -> Callable[[], Iterator[Iterable[memoryview]]]:
        """See Blocks.leave."""
        copies, arrival = self._device.on_host(block_ids), Arrival(self._device.device)
        blocks, states = self._device.split(block_ids)

        def wait() -> Iterator[Iterable[memoryview]]:
            arrival.wait()
            for index in range(len(blocks)):
                yield (_bytes(part.narrow(self._device.blocks.dimension, index, 1)) for part in copies.blocks)
            for index in range(len(states)):
                yield (_bytes(part.narrow(self._device.states.dimension, index, 1)) for part in copies.states)

        return wait

    def enter(self, contents: Sequence[bytearray], block_ids: Sequence[int]) -> Callable[[], None]:
        """See Blocks.enter."""
        num_blocks = len(self._device.split(block_ids)[0])
        copies = Copies(
            _joined(contents[:num_blocks], self._device.blocks), _joined(contents[num_blocks:], self._device.states)
        )  # fmt: skip
        return lambda: self._device.put(copies, block_ids)


def _bytes(part: torch.Tensor) -> memoryview:
    return memoryview(part.contiguous().view(torch.uint8).numpy()).cast("B")


def _joined(contents: Sequence[bytearray], items: Items) -> list[torch.Tensor]:
    """The parts of items, as Items.taken returns them, from the bytes of each."""
    if not contents or not items.forms:
        return []
    found, start = [], 0
    every = [torch.frombuffer(content, dtype=torch.uint8) for content in contents]
    for form in items.forms:
        parts = [each[start : start + form.num_bytes].view(form.dtype).view(form.shape) for each in every]
        found.append(torch.cat(parts, items.dimension))
        start += form.num_bytes
    return found


def open_storage(device: Movable, config: KvTransferConfig, rank: int) -> SharedStorage:
    """Creates the store of a rank of a worker.

    Args:
        rank: among the ranks that compute a sequence.

    Raises:
        StartupError: the folder does not exist and cannot be created.
    """
    storage = config.kv_connector_extra_config
    try:
        storage.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{storage.folder} of --kv-transfer-config cannot be used: {error}.") from error
    files = BlockFiles(storage.folder, rank, storage.max_gib * 2**30)
    readers, writers = ThreadPoolExecutor(_THREADS, "kv-readers"), ThreadPoolExecutor(_THREADS, "kv-writers")
    return SharedStorage(MovableBlocks(device), files, readers, writers)


def _name(place: int | bytes) -> str:
    return bytes(place).decode()
