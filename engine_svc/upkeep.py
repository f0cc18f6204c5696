"""What a worker's ranks are asked for between steps: to give memory back and take it again, and to be profiled.

Plain data, as `plan.py` has it: each goes to all ranks, and each rank answers with some lines of text.
"""

from __future__ import annotations

import msgspec


class ReleaseMemory(msgspec.Struct, frozen=True, tag=True):
    """Give the KV cache back, with all that it keeps; and the weights."""

    # They are forgotten, and read anew later. Otherwise those of a GPU go to host memory; those of a CPU are there.
    forgets_weights: bool = False


class RestoreWeights(msgspec.Struct, frozen=True, tag=True):
    """Have the weights in their place again, wherever they are now."""


class RestoreCache(msgspec.Struct, frozen=True, tag=True):
    """Allocate a KV cache of the same size, empty, and get ready for steps. The weights are there."""


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Note from now on what runs, and how long."""

    folder: str  # for a file of each rank
    name: str  # of the files, in front of the rank's
    most_steps: int  # after these it ends by itself
    first_step: int = 0  # so many steps from now
    with_stack: bool = False
    with_shapes: bool = False
    with_memory: bool = False
    is_compressed: bool = True


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """Write what was noted; the answer is the file. Nothing where nothing is noted."""


MemoryUpkeep = ReleaseMemory | RestoreWeights | RestoreCache
Upkeep = MemoryUpkeep | StartProfile | StopProfile
