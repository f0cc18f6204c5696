"""The block store that the options choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.host_memory import HostMemory
from engine_svc.block_stores.movable import Movable
from engine_svc.block_stores.shared_storage import open_storage
from engine_svc.block_stores.tiers import joined
from engine_svc.plan import CacheSize
from quire.options.cache import CacheOptions

MakeStore: TypeAlias = Callable[[Movable], BlockStore]


def chosen_store(options: CacheOptions, size: CacheSize, rank: int) -> MakeStore:
    """Returns what creates the store over what a rank's device keeps.

    Args:
        rank: among the ranks that compute a sequence.
    """

    def make(device: Movable) -> BlockStore:
        exchanges = [open_storage(device, config, rank) for config in options.transfer().exchanges]
        if not size.num_host_blocks:
            return joined(exchanges)
        return joined([HostMemory(device, size.num_host_blocks, size.num_host_snapshots), *exchanges])

    return make
