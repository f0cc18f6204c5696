"""What a cached block is called, wherever it is kept."""

from __future__ import annotations

from typing import NamedTuple

STATES = -1  # in place of a group


class BlockName(NamedTuple):
    """Names the block that one group of layers has for some tokens and everything before them.

    Or else the states that recurrent layers have after these tokens, which are kept like a block.
    """

    block_hash: bytes  # see quire/block_hash.py
    group: int = 0  # of layers: see layer_groups.py; or STATES
