"""All-reduce and all-gather through memory shared by the ranks of one machine; see `native/collectives.cpp`."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import secrets
from pathlib import Path

import torch
import torch.distributed as dist

from engine_svc.native.calls import KernelFailed
from engine_svc.native.library import TYPES, Kernels

logger = logging.getLogger(__name__)

_ROOM = 2**20  # bytes: what is written and read at a time should stay in a CPU's own cache
_LINE = 128  # as in collectives.cpp


class SharedRanks(ctypes.Structure):
    """See collectives.cpp."""

    _fields_ = (
        ("memory", ctypes.c_void_p), ("rank", ctypes.c_int64), ("ranks", ctypes.c_int64), ("room", ctypes.c_int64),
        ("nanoseconds", ctypes.c_int64), ("put", ctypes.c_int64), ("parts", ctypes.c_int64),
    )  # fmt: skip


class SharedMemory:
    """A rank's end. All ranks must make the same calls in the same order, each from one thread."""

    def __init__(
        self, memory: mmap.mmap, rank: int, ranks: int, kernels: Kernels, seconds: float, room: int = _ROOM
    ) -> None:
        """
        Args:
            memory: `size(ranks, room)` bytes, initially zero.
            seconds: how much later than this rank the others may arrive.
            room: bytes transferred at a time.
        """
        self._memory = memory
        self._start = ctypes.c_char.from_buffer(memory)
        self._own = SharedRanks(ctypes.addressof(self._start), rank, ranks, room, int(seconds * 1e9), 0, 0)
        self._kernels, self._seconds = kernels, seconds

    @staticmethod
    def size(ranks: int, room: int = _ROOM) -> int:
        """The size of the memory in bytes; pages that are never written take no physical memory."""
        return _LINE * (1 + ranks) + 2 * ranks * room

    def sums(self, tensor: torch.Tensor) -> bool:
        """Whether `all_reduce` takes the tensor."""
        return tensor.dtype in TYPES and tensor.is_contiguous()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in place: from the first rank to the last, in float32.

        Raises:
            KernelFailed: a rank did not arrive in time; no later call can succeed either.
        """
        done = self._kernels.all_reduce(
            ctypes.byref(self._own), TYPES[tensor.dtype], tensor.data_ptr(), tensor.numel()
        )  # fmt: skip
        self._check(done)
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' contiguous tensors side by side along the last dimension; raises as `all_reduce`."""
        output = tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] * self._own.ranks))
        width = tensor.shape[-1]
        rows = tensor.numel() // width if width else 0
        done = self._kernels.all_gather(
            ctypes.byref(self._own), tensor.data_ptr(), rows, width * tensor.itemsize, output.data_ptr()
        )  # fmt: skip
        self._check(done)
        return output

    def _check(self, done: int) -> None:
        if not done:
            raise KernelFailed(f"a rank has not reached a collective within {self._seconds:g} s")


def share_memory(group: dist.ProcessGroup, rank: int, kernels: Kernels | None, seconds: float) -> SharedMemory | None:
    """Creates the memory for a group. None on all ranks if they are not on one machine or any lacks kernels.

    The first rank creates an anonymous file, which the others open through that process's /proc entry. The file
    disappears with the last of them, however they end.

    Args:
        seconds: see SharedMemory.
    """
    ranks = group.size()
    descriptor, token = -1, secrets.randbits(62)
    if rank == 0:
        descriptor = os.memfd_create(_name(token))
        os.ftruncate(descriptor, SharedMemory.size(ranks))
    place = torch.tensor((os.getpid(), descriptor, token), dtype=torch.int64)
    dist.broadcast(place, group=group, group_src=0)
    memory = _open(*place.tolist()) if kernels is not None else None
    lacking = torch.tensor([memory is None], dtype=torch.int64)
    dist.all_reduce(lacking, group=group)
    if rank == 0:
        os.close(descriptor)
    if memory is None or kernels is None or lacking.item():
        logger.info("ranks sum by messages: not all of them are on this machine and have the native kernels")
        return None
    return SharedMemory(memory, rank, ranks, kernels, seconds)


def _name(token: int) -> str:
    return f"quire-collectives-{token}"


def _open(pid: int, descriptor: int, token: int) -> mmap.mmap | None:
    """Maps another process's file. None if that process is not on this machine, even if another has its pid."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    try:
        if not str(path.readlink()).startswith(f"/memfd:{_name(token)} "):
            return None
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)
    except OSError:
        return None
