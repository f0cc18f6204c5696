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

from engine_svc.attention.base import AttentionBackend
from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.block_files import BlockFiles
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
    """The blocks of a rank's caches, as bytes. What takes long is left to other threads than the caller's."""

    @property
    def num_bytes(self) -> int:
        """Size of a block."""

    def leave(self, block_ids: Sequence[int]) -> Callable[[], Iterator[Iterable[memoryview]]]:
        """Copies blocks from the device, in the order of its stream.

        Returns:
            A function, for another thread, that waits for the copies and yields each block in parts. The device's
            blocks may be changed at once.
        """

    def enter(self, contents: Sequence[bytearray]) -> Callable[[Sequence[int]], None]:
        """Prepares blocks for the device; may be called in another thread.

        Returns:
            A function that copies them to the device's blocks with these ids, in the order of its stream.
        """


@dataclass(frozen=True)
class _Piece:
    """Blocks that have been read: as many as were asked for, or fewer if one is missing."""

    num_blocks: int
    enter: Callable[[Sequence[int]], None]


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
        self._most_at_once = max(1, _PIECE_BYTES // blocks.num_bytes)
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
        count = min(len(save.block_ids), (_MOST_WAITING_BYTES - self._waiting_bytes) // self._blocks.num_bytes)
        self._ended.append(EndedTransfer(save.key, count))
        if count:
            size = count * self._blocks.num_bytes
            self._count(size)
            copies = self._blocks.leave(save.block_ids[:count])
            self._writers.submit(self._write, list(map(_name, save.places[:count])), copies, size, time.time_ns())

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
        return self._readers.submit(self._read, list(map(_name, load.places[first : first + self._most_at_once])))

    def _read(self, places: Sequence[str]) -> _Piece:
        found = list(itertools.takewhile(lambda content: content is not None, map(self._files.read, places)))
        return _Piece(len(found), self._blocks.enter([content for content in found if content is not None]))

    def _get_on(self, load: _Load) -> None:
        """Copies a piece to the device, and starts reading the next one."""
        piece, first = load.reading.result(), load.num_blocks
        load.num_blocks = end = first + piece.num_blocks
        is_whole = piece.num_blocks == self._most_at_once
        if is_whole and end < len(load.transfer.block_ids):
            load.reading = self._read_on(load.transfer, end)
        else:
            del self._loads[load.transfer.key]
            self._ended.append(EndedTransfer(load.transfer.key, end))
        if piece.num_blocks:
            piece.enter(load.transfer.block_ids[first:end])


class CacheBlocks:
    """The blocks of KV caches; see Blocks. A block's bytes are those of all layers, one behind the other."""

    def __init__(self, attention: AttentionBackend, caches: Sequence[torch.Tensor]) -> None:
        self._attention = attention
        self._caches = caches
        self._forms = [(each.shape, each.dtype, each.nbytes) for each in attention.blocks_on_host(caches, [0])]
        self.num_bytes = sum(size for _, _, size in self._forms)

    def leave(self, block_ids: Sequence[int]) -> Callable[[], Iterator[Iterable[memoryview]]]:
        """See Blocks.leave."""
        layers = self._attention.blocks_on_host(self._caches, block_ids)
        arrival = Arrival(self._attention.shape.device)

        def wait() -> Iterator[Iterable[memoryview]]:
            arrival.wait()
            for block in zip(*(layer.split(1, self._attention.block_dimension) for layer in layers), strict=True):
                yield (memoryview(part.contiguous().view(torch.uint8).numpy()).cast("B") for part in block)

        return wait

    def enter(self, contents: Sequence[bytearray]) -> Callable[[Sequence[int]], None]:
        """See Blocks.enter."""
        blocks = [torch.frombuffer(content, dtype=torch.uint8) for content in contents]
        layers, start = [], 0
        for shape, dtype, size in self._forms if blocks else ():
            parts = [block[start : start + size].view(dtype).view(shape) for block in blocks]
            layers.append(torch.cat(parts, self._attention.block_dimension))
            start += size
        return lambda block_ids: self._attention.put_blocks(layers, self._caches, block_ids)


def open_storage(
    attention: AttentionBackend, caches: Sequence[torch.Tensor], config: KvTransferConfig, rank: int
) -> SharedStorage:
    """Creates the store of a rank of a worker.

    Args:
        rank: among the ranks that compute a sequence.

    Raises:
        StartupError: the folder does not exist and cannot be created.
    """
    blocks, storage = CacheBlocks(attention, caches), config.kv_connector_extra_config
    try:
        storage.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"shared_storage_path of --kv-transfer-config cannot be used: {error}.") from error
    files = BlockFiles(storage.folder, rank, blocks.num_bytes, storage.max_gib * 2**30)
    readers, writers = ThreadPoolExecutor(_THREADS, "kv-readers"), ThreadPoolExecutor(_THREADS, "kv-writers")
    return SharedStorage(blocks, files, readers, writers)


def _name(place: int | bytes) -> str:
    return bytes(place).decode()
