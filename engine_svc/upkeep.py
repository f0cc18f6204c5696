"""Commands to a worker's ranks between steps: release and restore memory, replace weights, and profiling.

They are plain data, like those of `plan.py`. Each is sent to all ranks, and each rank answers with some lines of text.
"""

from __future__ import annotations

import msgspec


class ReleaseMemory(msgspec.Struct, frozen=True, tag=True):
    """Release the KV cache with its contents, and the weights."""

    # Drop the weights and read them again later. Otherwise a GPU's are moved to host memory, and a CPU's stay there.
    forgets_weights: bool = False


class RestoreWeights(msgspec.Struct, frozen=True, tag=True):
    """Put the weights back in place, from wherever they are now."""

    # After weights were dropped: folder of those to load from now on; empty means the same as before.
    folder: str = ""


class RestoreCache(msgspec.Struct, frozen=True, tag=True):
    """Allocate an empty KV cache of the same size and prepare for steps. The weights have been restored."""


class CheckWeights(msgspec.Struct, frozen=True, tag=True):
    """Compare the weights in a folder with the served ones; the answer is why they cannot replace them, if so."""

    folder: str


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Start profiling."""

    folder: str  # for one file per rank
    name: str  # prefix of the file names, before the rank's number
    most_steps: int  # ends by itself after this many steps
    first_step: int = 0  # number of steps to skip first
    with_stack: bool = False
    with_shapes: bool = False
    with_memory: bool = False
    is_compressed: bool = True


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """Stop profiling and write the profile; the answer is its file. Does nothing if no profile is running."""


MemoryUpkeep = ReleaseMemory | RestoreWeights | RestoreCache
Upkeep = MemoryUpkeep | CheckWeights | StartProfile | StopProfile
