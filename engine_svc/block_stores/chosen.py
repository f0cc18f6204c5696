"""The block store that the options choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.block_stores.base import BlockStore, NoStore
from engine_svc.block_stores.host_memory import HostMemory
from engine_svc.block_stores.shared_storage import open_storage
from quire.options.cache import CacheOptions

MakeStore: TypeAlias = Callable[[AttentionBackend, Sequence[torch.Tensor]], BlockStore]


def chosen_store(options: CacheOptions, num_host_blocks: int, rank: int) -> MakeStore:
    """Returns what creates the store over a rank's caches.

    Args:
        rank: among the ranks that compute a sequence.
    """
    if num_host_blocks:
        return lambda attention, caches: HostMemory(attention, caches, num_host_blocks)
    config = options.transfer()
    if config.is_on:
        return lambda attention, caches: open_storage(attention, caches, config, rank)
    return lambda attention, caches: NoStore()
