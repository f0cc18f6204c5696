"""Commands to a worker's ranks between steps: release and restore memory, replace weights, and profiling.

They are plain data, like those of `plan.py`. Each is sent to all ranks, and each rank answers with some lines of text.
"""

from __future__ import annotations

import msgspec


class ReleaseMemory(msgspec.Struct, frozen=True, tag=True):
    """Release the KV cache with its contents, and the weights unless they are to be kept."""

    # Drop the weights and read them again later. Otherwise a GPU's are moved to host memory, and a CPU's stay there.
    forgets_weights: bool = False
    # Release the KV cache only.
    keeps_weights: bool = False


class RestoreWeights(msgspec.Struct, frozen=True, tag=True):
    """Put the weights back in place, from wherever they are now."""

    # After weights were dropped: folder of those to load from now on; empty means the same as before.
    folder: str = ""
    draft_folder: str = ""  # the same for the draft model


class RestoreCache(msgspec.Struct, frozen=True, tag=True):
    """Allocate an empty KV cache of the same size and prepare for steps. The weights have been restored."""


class CheckWeights(msgspec.Struct, frozen=True, tag=True):
    """Compare the weights in a folder with the served ones; the answer is why they cannot replace them, if so."""

    folder: str


class JoinTrainer(msgspec.Struct, frozen=True, tag=True):
    """Join the process group in which a trainer, its rank 0, broadcasts weights; the answer is why not, if so."""

    address: str  # of the trainer's store
    port: int
    own_address: str  # of this machine, for the trainer
    first_rank: int  # of the worker's first rank in the group
    world_size: int
    seconds: float  # most time that it may take


class LeaveTrainer(msgspec.Struct, frozen=True, tag=True):
    """Leave the trainer's process group, if any; the others' broadcasts fail then, if they wait for this rank."""


class SentTensor(msgspec.Struct, frozen=True):
    """A tensor that a trainer sends."""

    name: str  # as in the served checkpoint
    dtype: str  # torch's name, such as bfloat16
    shape: tuple[int, ...]


class CheckTensors(msgspec.Struct, frozen=True, tag=True):
    """Compare tensors with those of the served checkpoint; the answer is why they cannot replace them, if so."""

    tensors: list[SentTensor]
    of_draft: bool = False  # whether they are compared with those of the draft model instead


class ReceiveTensors(msgspec.Struct, frozen=True, tag=True):
    """Receive tensors, which have been checked, into files; the answer is why that failed, if so."""

    tensors: list[SentTensor]
    folder: str  # exists; the first rank writes the files
    seconds: float  # most time that it may take
    # The trainer broadcasts buffers of tensors' bytes; each ends with the tensor with which it has more than this many.
    # None: each tensor is broadcast by itself.
    buffer_bytes: int | None = None
    of_draft: bool = False  # see CheckTensors


class CompleteWeights(msgspec.Struct, frozen=True, tag=True):
    """Add to a folder of received tensors what else a checkpoint has, so that it can be loaded like one; the answer is
    why that failed, if so."""

    folder: str
    # Folder of the served weights, from which the tensors come that were not received; empty for the draft model's that
    # the options name.
    served: str
    of_draft: bool = False  # see CheckTensors


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
TransferUpkeep = JoinTrainer | LeaveTrainer | CheckTensors | ReceiveTensors | CompleteWeights
Upkeep = MemoryUpkeep | TransferUpkeep | CheckWeights | StartProfile | StopProfile
