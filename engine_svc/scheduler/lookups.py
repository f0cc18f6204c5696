"""Counts what sequences find in the prefix cache when they begin."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.kv_cache.prefix import Hits


@dataclass
class Lookups:
    """Tokens that were looked up, and where they were found."""

    block_size: int
    queries: int = 0
    hits: int = 0  # on the device
    external_queries: int = 0  # tokens not found there
    external_hits: int = 0  # tokens that a connector loaded instead
    host_hits: int = 0  # those of them that came from this worker's host memory

    def count(self, num_tokens: int, hits: Hits) -> None:
        """Counts the lookup of a sequence with so many tokens."""
        on_device, in_memory, elsewhere = (num_blocks * self.block_size for num_blocks in hits)
        self.queries += num_tokens
        self.hits += on_device
        self.external_queries += num_tokens - on_device
        self.external_hits += in_memory + elsewhere
        self.host_hits += in_memory
