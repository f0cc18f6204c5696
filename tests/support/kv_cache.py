"""A KV cache manager by its few figures."""

from __future__ import annotations

from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.manager import KvCacheManager
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
    return KvCacheManager(facts, CacheOptions(enable_prefix_caching=caching))
