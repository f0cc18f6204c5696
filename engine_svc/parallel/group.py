"""The groups of ranks that a rank works with, handed to every layer that needs one."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from engine_svc.parallel.layout import ParallelLayout, Purpose

_JOIN_SECONDS = 120


@dataclass(frozen=True)
class ParallelGroup:
    """A rank among `world_size`; with one rank every collective is free."""

    rank: int = 0
    world_size: int = 1
    process_group: dist.ProcessGroup | None = None
    sums_in_order: bool = False  # whatever a tensor's size, and a value's place in it

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in place."""
        if self.process_group is None:
            return tensor
        if self.sums_in_order and self.world_size > 2:  # of two, either order is the same
            return tensor.copy_(self._sum_in_order(tensor))
        dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def _sum_in_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """From the first rank to the last, in float32. Each rank does so for its share of the values.

        Libraries cut a tensor into pieces by its size, and sum each piece beginning with another rank.
        """
        share = -(-tensor.numel() // self.world_size)
        padded = F.pad(tensor.flatten(), (0, share * self.world_size - tensor.numel()))
        parts, whole = torch.empty_like(padded), torch.empty_like(padded)
        dist.all_to_all_single(parts, padded, group=self.process_group)
        total = torch.zeros(share, dtype=torch.float32, device=tensor.device)
        for part in parts.split(share):
            total += part
        dist.all_gather_into_tensor(whole, total.to(tensor.dtype), group=self.process_group)
        return whole[: tensor.numel()].view(tensor.shape)

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension."""
        if self.process_group is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.process_group)
        return torch.cat(parts, dim=-1)

    def divide(self, total: int, what: str) -> int:
        """total / world_size.

        Raises:
            ValueError: it does not come out even.
        """
        if total % self.world_size:
            raise ValueError(f"{what} ({total}) cannot be divided among {self.world_size} ranks")
        return total // self.world_size


@dataclass(frozen=True)
class ParallelGroups:
    """A rank's groups. A layer asks for the one of its purpose; a rank alone is in groups of one.

    Attributes:
        tensor, expert, pipeline, data, decode_context: see Purpose.
    """

    layout: ParallelLayout = ParallelLayout()
    rank: int = 0
    tensor: ParallelGroup = ParallelGroup()
    expert: ParallelGroup = ParallelGroup()
    pipeline: ParallelGroup = ParallelGroup()
    data: ParallelGroup = ParallelGroup()
    decode_context: ParallelGroup = ParallelGroup()


def join_groups(
    layout: ParallelLayout, rank: int, rendezvous: str, device: torch.device, sums_in_order: bool = False
) -> ParallelGroups:
    """Meets the other ranks.

    Args:
        rendezvous: where they meet: a file that all ranks see, fresh for each worker, or `tcp://<host>:<port>`.
        sums_in_order: see ParallelGroup.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend, init_method=rendezvous if "://" in rendezvous else f"file://{rendezvous}", rank=rank,
        world_size=layout.num_ranks, timeout=datetime.timedelta(seconds=_JOIN_SECONDS),
    )  # fmt: skip
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = {tuple(range(layout.num_ranks)): dist.group.WORLD}

    def join(purpose: Purpose) -> ParallelGroup:
        """Every rank makes every group, in the same order, its own or not: so they are agreed on."""
        for ranks in layout.groups(purpose):
            if len(ranks) > 1 and ranks not in made:
                made[ranks] = dist.new_group(list(ranks))
        own = layout.group_of(rank, purpose)
        return ParallelGroup(own.index(rank), len(own), made.get(own), sums_in_order)

    return ParallelGroups(
        layout, rank, join(Purpose.TENSOR), join(Purpose.EXPERT), join(Purpose.PIPELINE), join(Purpose.DATA),
        join(Purpose.DECODE_CONTEXT),
    )  # fmt: skip
