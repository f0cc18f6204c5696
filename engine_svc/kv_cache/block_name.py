"""What a cached block is called, wherever it is kept."""

from __future__ import annotations

from typing import NamedTuple


class BlockName(NamedTuple):
    """Names the block that one group of layers has for some tokens and everything before them."""

    block_hash: bytes  # see quire/block_hash.py
    group: int = 0  # of layers: see layer_groups.py
