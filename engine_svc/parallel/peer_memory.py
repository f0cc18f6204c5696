"""All-reduce of small tensors by one kernel that reads the tensors of all ranks from peer GPU memory.

Torch provides the allocation, the mapping and the kernel (`torch.distributed._symmetric_memory`).
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

# Here, each rank reads the whole tensors of all others. Above this size, libraries that have each rank sum a part
# transfer less.
_MOST_BYTES = 2**18
_MOST_RANKS = 8
_TYPES = (torch.float32, torch.bfloat16)  # supported by the kernel
_ALIGNMENT = 16
_CAPABILITY = (8, 0)  # required for sums of bfloat16


class PeerMemory:
    """A rank's end. All ranks make the same calls in the same order, each on one stream, captured in a graph or not."""

    def __init__(self, memory: torch.Tensor, group_name: str) -> None:
        """
        Args:
            memory: uint8, mapped by all ranks of the group.
        """
        self._memory, self._group_name = memory, group_name

    def sums(self, tensor: torch.Tensor) -> bool:
        """Whether `all_reduce` takes the tensor; depends only on properties that are the same on all ranks."""
        size = tensor.nbytes
        return tensor.dtype in _TYPES and 0 < size <= len(self._memory) and size % _ALIGNMENT == 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, from the first to the last, as a new tensor."""
        tensor = tensor.contiguous()
        if tensor.data_ptr() % _ALIGNMENT:
            tensor = tensor.clone()
        memory = self._memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(memory, tensor, "sum", self._group_name)
        return total


def share_peers(group: dist.ProcessGroup, device: torch.device) -> PeerMemory | None:
    """Shares memory among the GPUs of a group. None on all ranks if they cannot access each other's memory."""
    if group.size() > _MOST_RANKS or not _all(_reaches(group, device), group, device):
        logger.info("ranks sum with NCCL only: not all of their GPUs are known to reach each other's memory")
        return None
    # Imported here because only GPUs need it and importing it takes time.
    import torch.distributed._symmetric_memory as symmetric_memory

    memory = None
    try:
        memory = symmetric_memory.empty(_MOST_BYTES, dtype=torch.uint8, device=device)
        symmetric_memory.rendezvous(memory, group.group_name)
    except RuntimeError as error:
        logger.warning("ranks sum with NCCL only: their GPUs' memory cannot be shared: %s", error)
        memory = None
    if not _all(memory is not None, group, device) or memory is None:
        return None
    return PeerMemory(memory, group.group_name)


def _reaches(group: dist.ProcessGroup, device: torch.device) -> bool:
    own = torch.tensor((_machine(), device.index or 0), device=device)
    places = own.new_empty((group.size(), 2))
    dist.all_gather_into_tensor(places, own, group=group)
    is_new = torch.cuda.get_device_capability(device) >= _CAPABILITY
    return is_new and reaches_all(places.tolist(), group.rank(), torch.cuda.can_device_access_peer)


def reaches_all(places: Sequence[Sequence[int]], rank: int, can_access: Callable[[int, int], bool]) -> bool:
    """Whether a rank's GPU can read the memory of all other ranks' GPUs.

    Args:
        places: machine and index of each rank's GPU. If each rank sees only its own GPU, all have index 0, and nothing
            is known about their access, so the answer is no.
        can_access: whether the GPU with the first index can read the memory of the second.
    """
    machine, own = places[rank]
    others = [place for other, place in enumerate(places) if other != rank]
    return all(where == machine and device != own and can_access(own, device) for where, device in others)


def _machine() -> int:
    """A number that differs between machines and between containers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes() + socket.gethostname().encode()
    return int.from_bytes(hashlib.blake2b(boot, digest_size=7).digest())


def _all(what: bool, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether `what` is true on all ranks."""
    found = torch.tensor([what], dtype=torch.int32, device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN, group=group)
    return bool(found.item())
