"""The block store that the options choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from engine_svc.block_stores.base import BlockStore, NoStore
from engine_svc.block_stores.host_memory import HostMemory
from engine_svc.block_stores.movable import Movable
from engine_svc.block_stores.shared_storage import open_storage
from engine_svc.plan import CacheSize
from quire.options.cache import CacheOptions

MakeStore: TypeAlias = Callable[[Movable], BlockStore]


def chosen_store(options: CacheOptions, size: CacheSize, rank: int) -> MakeStore:
    """Returns what creates the store over what a rank's device keeps.

    Args:
        rank: among the ranks that compute a sequence.
    """
    if size.num_host_blocks:
        return lambda device: HostMemory(device, size.num_host_blocks, size.num_host_snapshots)
    config = options.transfer()
    if config.is_on:
        return lambda device: open_storage(device, config, rank)
    return lambda device: NoStore()
