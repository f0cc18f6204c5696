"""KV blocks in a folder that several workers see: a disk, memory (/dev/shm), or a network file system.

Every full block that is computed is saved as a file, under a name that its hash gives it, and any worker that computes
alike (`ModelInfo.fingerprint`) loads it instead of computing it: prompts of other workers, of earlier runs, or, if some
workers only save and others only load, of a prefill worker.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.plan import BlockTransfer, EndedTransfer, Transfers
from quire.options.kv_transfer import KvTransferConfig

# How long a sequence waits for its blocks, in all and for each: longer than any healthy storage takes.
_WAIT_SECONDS, _SECONDS_A_BLOCK = 10.0, 0.02


class SharedStorage(KvConnector):
    """Looks for files in the folder, and has computed blocks saved there.

    A look-up asks the file system, because only then is a block found as soon as another worker has saved it. As blocks
    are saved in order, bisecting a prompt takes few questions. They are asked between steps, so that a file system
    that answers late delays the engine.
    """

    def __init__(self, config: KvTransferConfig, namespace: Callable[[], str], num_ranks: int = 1) -> None:
        """
        Args:
            namespace: returns the name under which workers that compute alike keep their blocks.
            num_ranks: that compute a sequence together.
        """
        self._num_ranks = num_ranks
        self._saves_any, self._loads_any = config.saves, config.loads
        self._folder = config.kv_connector_extra_config.folder
        self._namespace = namespace
        self._saves: list[BlockTransfer] = []
        self._loads: list[BlockTransfer] = []
        self._cancelled: list[int] = []
        self._saving: dict[int, Sequence[BlockName]] = {}  # names by transfer
        self._since = 0  # files from before this time, in nanoseconds, are not used

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return self._loads_any and self._is_there(name)

    def num_leading(self, hashes: Sequence[bytes], group: int) -> int:
        """See KvConnector.num_leading; where there is one block, those before it are expected to be there."""
        if not self.has(BlockName(hashes[0], group)):
            return 0
        return bisect_left(hashes, True, key=lambda block_hash: not self.has(BlockName(block_hash, group)))

    def wait_seconds(self, names: Sequence[BlockName]) -> float:
        """See KvConnector.wait_seconds."""
        return _WAIT_SECONDS + len(names) * _SECONDS_A_BLOCK

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """See KvConnector.load."""
        self._loads.append(BlockTransfer(list(block_ids), self._places(names), key))

    def wants(self, names: Sequence[BlockName]) -> Sequence[int]:
        """Those that nobody has saved yet."""
        if not self._saves_any:
            return ()
        saving = {each for some in self._saving.values() for each in some}
        return [index for index, each in enumerate(names) if each not in saving and not self._is_there(each)]

    def save(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """See KvConnector.save."""
        self._saving[key] = names
        self._saves.append(BlockTransfer(list(block_ids), self._places(names), key))

    def is_saved(self, name: BlockName) -> bool:
        """See KvConnector.is_saved."""
        return not self._saves_any or self._is_whole(name)

    def cancel(self, key: int) -> None:
        """See KvConnector.cancel."""
        self._cancelled.append(key)

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers."""
        transfers = Transfers(self._saves, self._loads, self._cancelled)
        self._saves, self._loads, self._cancelled = [], [], []
        return transfers

    def ended(self, ends: Sequence[EndedTransfer]) -> Sequence[EndedTransfer]:
        """See KvConnector.ended."""
        for end in ends:
            self._saving.pop(end.key, None)
        return ends

    def clear(self) -> None:
        """Files from before stay for other workers, which have no reason to distrust them."""
        self._since = time.time_ns()

    def _is_there(self, name: BlockName, rank: int = 0) -> bool:
        try:
            path = self._folder / f"{place_of(self._namespace(), name)}.{rank}"
            return path.stat().st_mtime_ns > self._since
        except OSError:
            return False

    def _is_whole(self, name: BlockName) -> bool:
        """Whether all ranks have written it."""
        return all(self._is_there(name, rank) for rank in range(self._num_ranks))

    def _places(self, names: Sequence[BlockName]) -> list[bytes]:
        namespace = self._namespace()
        return [place_of(namespace, each).encode() for each in names]


_SUFFIXES = {0: "", STATES: "-states"}  # of groups that have other suffixes than their number


def place_of(namespace: str, name: BlockName) -> str:
    """Returns a block's place in the folder; each rank appends its number to the name."""
    block_hash = name.block_hash.hex()
    return f"{namespace}/{block_hash[:2]}/{block_hash}" + _SUFFIXES.get(name.group, f"-{name.group}")
