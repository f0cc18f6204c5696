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
    has_states: bool = False  # the model has recurrent layers, whose states are only those after the last token
    # How many of these states can be saved, so that other sequences can begin with them, and after which multiples of
    # tokens, which are whole blocks. Without saved states, no sequence of such a model begins with cached blocks.
    num_snapshots: int = 0
    snapshot_tokens: int = 0
    num_host_snapshots: int = 0  # saved states in the second tier
    block_bytes: int = 0  # size of a block on each rank, and of a saved state
    snapshot_bytes: int = 0
