"""What a worker's KV cache is like, once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KvCacheFacts:
    """Blocks, and what of the model decides how they are used."""

    num_blocks: int
    block_size: int  # tokens
    num_host_blocks: int = 0  # of the prefix cache's second tier
    max_num_batched_tokens: int  # of a step
    num_stages: int = 1  # of the model's layers, each of which may have a step under way
    windows: tuple[int | None, ...] = (None,)  # of the groups of layers: see layer_groups.py
    # Whether sequences that begin alike may share blocks. Not where layers keep states beside them, which are of a
    # sequence's last computed token alone: there nothing that is cached could be gone on from.
    shares_blocks: bool = True
