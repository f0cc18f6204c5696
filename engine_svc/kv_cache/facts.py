"""Properties of a worker's KV cache, known once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KvCacheFacts:
    """The number and size of the blocks, and the model properties that decide how they are used."""

    num_blocks: int
    block_size: int  # tokens
    num_host_blocks: int = 0  # blocks of the prefix cache's second tier
    max_num_batched_tokens: int  # token budget of a step
    num_stages: int = 1  # pipeline stages, each of which may have a step under way
    windows: tuple[int | None, ...] = (None,)  # of each group of layers: see layer_groups.py
    # Whether sequences with a common prefix may share blocks. False for models with recurrent layers: their states are
    # only kept for a sequence's last computed token, so a sequence could not continue from cached blocks.
    shares_blocks: bool = True
