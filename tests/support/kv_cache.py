"""Makes KV cache managers from a few numbers, and reads the copies of their host tier."""

from __future__ import annotations

from collections.abc import Iterable

from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.plan import BlockTransfer
from quire.options.cache import CacheOptions


def make_manager(
    num_blocks: int,
    block_size: int = 4,
    caching: bool = True,
    windows: tuple[int | None, ...] = (None,),
    num_host_blocks: int = 0,
    max_num_batched_tokens: int = 0,
) -> KvCacheManager:
    """See KvCacheFacts."""
    facts = KvCacheFacts(
        num_blocks=num_blocks, block_size=block_size, windows=windows, num_host_blocks=num_host_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
    )  # fmt: skip
    connector = HostTier(num_host_blocks) if num_host_blocks else None
    return KvCacheManager(facts, CacheOptions(enable_prefix_caching=caching), connector)


def take_copies(manager: KvCacheManager) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Copies of the host tier: (device block, host block) pairs to save, (host block, device block) pairs to load."""
    transfers = manager.take_transfers()
    out = [(block, int(place)) for save in transfers.saves for block, place in _pairs(save)]
    return out, [(int(place), block) for load in transfers.loads for block, place in _pairs(load)]


def _pairs(transfer: BlockTransfer) -> Iterable[tuple[int, int | bytes]]:
    return zip(transfer.block_ids, transfer.places, strict=True)
