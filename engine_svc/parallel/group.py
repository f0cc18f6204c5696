"""The groups of ranks that a rank belongs to, passed to every layer that needs one."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
import torch.nn.functional as F

from engine_svc.native.library import Kernels
from engine_svc.parallel.dual_batch import DualBatch
from engine_svc.parallel.layout import ParallelLayout, Purpose
from engine_svc.parallel.lockstep import Lockstep
from engine_svc.parallel.pass_counts import PassCounts
from engine_svc.parallel.peer_memory import PeerMemory, share_peers
from engine_svc.parallel.shared_memory import SharedMemory, share_memory

_JOIN_SECONDS = 120
# Data ranks are separate workers, possibly on several machines, which may take a long time to start.
_MEET_SECONDS = 3600
_LOOPBACK = "127.0.0.1"


def _bytes_of(rows: torch.Tensor) -> torch.Tensor:
    """The rows as bytes, uint8 [rows, bytes], which every communication library can move."""
    width = math.prod(rows.shape[1:]) * rows.element_size()
    return rows.contiguous().view(torch.uint8).view(len(rows), width)


@dataclass(frozen=True)
class ParallelGroup:
    """A rank among `world_size`; with a single rank, collectives do nothing."""

    rank: int = 0
    world_size: int = 1
    process_group: dist.ProcessGroup | None = None
    sums_in_order: bool = False  # sums ranks in a fixed order, for any size of tensor and place of a value in it
    shared: SharedMemory | None = None  # for ranks on one machine's CPU; always sums in order
    peers: PeerMemory | None = None  # for ranks on GPUs that can access each other's memory
    dual_batch: DualBatch = field(default_factory=DualBatch)  # lets the other half of a pass compute during collectives

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks. May work in place: use only the returned tensor."""
        if self.process_group is None:
            return tensor
        return self.dual_batch.communicate(lambda: self._all_reduce(tensor))

    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        for memory in (self.shared, self.peers):
            if memory is not None and memory.sums(tensor):
                return memory.all_reduce(tensor)
        if self.sums_in_order and self.world_size > 2:  # for two ranks, order does not matter
            return tensor.copy_(self._sum_in_order(tensor))
        dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def _sum_in_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums from the first rank to the last, in float32. Each rank sums its share of the values.

        Libraries split a tensor into pieces depending on its size, and start the sum of each piece with another rank.
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
        return self.dual_batch.communicate(lambda: self._all_gather_last(tensor))

    def _all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.shared is not None:
            return self.shared.all_gather_last(tensor.contiguous())
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.process_group)
        return torch.cat(parts, dim=-1)

    def all_gather_rows(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The rows of all ranks, one rank after the other.

        Args:
            rows: [own count, ...]
            counts: number of rows of each rank.
        """
        if self.process_group is None:
            return rows
        most = max(counts)
        padded = F.pad(_bytes_of(rows), (0, 0, 0, most - len(rows)))
        gathered = self.all_gather_last(padded.view(1, -1)).view(self.world_size, most, -1)
        kept = torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])
        return kept.view(rows.dtype).view(-1, *rows.shape[1:])

    def exchange_rows(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Sends some of the rows to each rank, and receives some from each (all-to-all).

        Args:
            rows: [all rows to send, ...]: those for the first rank, then those for the next one.
            sent, received: number of rows by rank.

        Returns:
            [all received rows, ...]: those from the first rank, then those from the next one.
        """
        if self.process_group is None:
            return rows
        return self.dual_batch.communicate(lambda: self._exchange_rows(rows, sent, received))

    def _exchange_rows(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        flat = _bytes_of(rows)
        found = flat.new_empty((sum(received), flat.shape[1]))
        dist.all_to_all_single(found, flat, list(received), list(sent), group=self.process_group)
        return found.view(rows.dtype).view(-1, *rows.shape[1:])

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrites the tensor with the first rank's, in place, and returns it."""
        if self.process_group is not None:
            dist.broadcast(tensor, group=self.process_group, group_src=0)
        return tensor

    def send_rows(self, rows: torch.Tensor, sent: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
        """Like `exchange_rows`, for ranks that do not know how many rows they receive.

        Args:
            sent: int64 [ranks]

        Returns:
            The received rows, and how many rows were sent to each rank and received from each.
        """
        counts: list[list[int]] = []

        def exchange() -> torch.Tensor:
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self.process_group)
            counts.extend(torch.stack((sent, received)).tolist())
            return self._exchange_rows(rows, *counts)

        return self.dual_batch.communicate(exchange), counts[0], counts[1]

    def send(self, tensor: torch.Tensor, rank: int) -> dist.Work:
        """Starts sending a tensor to a rank of the group; the tensor must not change until that is done."""
        work = dist.isend(tensor, group=self.process_group, group_dst=rank)
        assert work is not None
        return work

    def receive(self, tensor: torch.Tensor, rank: int) -> dist.Work:
        """Starts receiving into a tensor what a rank of the group sends, in the order of sending."""
        work = dist.irecv(tensor, group=self.process_group, group_src=rank)
        assert work is not None
        return work

    def divide(self, total: int, what: str) -> int:
        """total / world_size.

        Raises:
            ValueError: `total` is not divisible.
        """
        if total % self.world_size:
            raise ValueError(f"{what} ({total}) cannot be divided among {self.world_size} ranks")
        return total // self.world_size


@dataclass(frozen=True)
class ParallelGroups:
    """A rank's groups, one for each purpose; a single rank is in groups of one.

    Attributes:
        tensor, expert, pipeline, data, decode_context: see Purpose.
        lockstep: with the other data ranks, if there are any.
        dual_batch: shared by all groups.
    """

    layout: ParallelLayout = ParallelLayout()
    rank: int = 0
    tensor: ParallelGroup = ParallelGroup()
    expert: ParallelGroup = ParallelGroup()
    pipeline: ParallelGroup = ParallelGroup()
    data: ParallelGroup = ParallelGroup()
    decode_context: ParallelGroup = ParallelGroup()
    lockstep: Lockstep | None = None
    dual_batch: DualBatch = field(default_factory=DualBatch)

    def of_replica(self) -> ParallelGroups:
        """The groups for a model that data ranks do not share: each runs it by itself, without lockstep."""
        if self.lockstep is None:
            return self
        layout = replace(self.layout, data=1, expert=1 if self.layout.expert == 1 else self.layout.tensor)
        place = replace(self.layout.coordinates(self.rank), data=0)
        return replace(
            self, layout=layout, rank=layout.rank(place), expert=self.tensor, data=ParallelGroup(), lockstep=None
        )

    def of_draft(self) -> ParallelGroups:
        """The groups for a draft model: those of a replica, but each rank caches whole sequences."""
        own = self.of_replica()
        return replace(own, layout=replace(own.layout, decode_context=1), decode_context=ParallelGroup())


def join_groups(
    layout: ParallelLayout, rank: int, rendezvous: str, device: torch.device, sums_in_order: bool = False,
    kernels: Kernels | None = None, custom: bool = True,
) -> ParallelGroups:  # fmt: skip
    """Connects to the other ranks and creates all groups.

    Args:
        rendezvous: where ranks meet: a file visible to all ranks, new for each worker, or `tcp://<host>:<port>`.
        sums_in_order: see ParallelGroup.
        kernels: for the rank's CPU.
        custom: allows sums and gathers through shared memory, in addition to NCCL or Gloo.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = rendezvous if "://" in rendezvous else f"file://{rendezvous}"
    host = urlsplit(meeting).hostname or _LOOPBACK
    if host == _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend, init_method=meeting, rank=rank, world_size=layout.num_ranks,
        timeout=timedelta(seconds=_JOIN_SECONDS if layout.data == 1 else _MEET_SECONDS),
    )  # fmt: skip
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    if layout.data == 1:
        made[tuple(range(layout.num_ranks))] = dist.group.WORLD
    # torch requires that every rank creates every group, in the same order, even those that it is not in.
    for purpose in Purpose:
        for ranks in layout.groups(purpose):
            if len(ranks) > 1 and ranks not in made:
                made[ranks] = _new_group(ranks, None)
    shared = _share(layout, rank, made, kernels) if custom and device.type == "cpu" else {}
    tensor = made.get(layout.group_of(rank, Purpose.TENSOR))
    peers = None
    if tensor is not None and custom and device.type == "cuda" and not sums_in_order:
        peers = share_peers(tensor, device)
    dual_batch = DualBatch(device)

    def join(purpose: Purpose) -> ParallelGroup:
        own = layout.group_of(rank, purpose)
        return ParallelGroup(
            own.index(rank), len(own), made.get(own), sums_in_order, shared.get(own),
            peers if purpose is Purpose.TENSOR else None, dual_batch,
        )  # fmt: skip

    return ParallelGroups(
        layout, rank, join(Purpose.TENSOR), join(Purpose.EXPERT), join(Purpose.PIPELINE), join(Purpose.DATA),
        join(Purpose.DECODE_CONTEXT), _join_lockstep(layout, rank, made, host, backend), dual_batch,
    )  # fmt: skip


def _share(
    layout: ParallelLayout, rank: int, made: Mapping[tuple[int, ...], dist.ProcessGroup | None], kernels: Kernels | None
) -> dict[tuple[int, ...], SharedMemory | None]:
    """Shared memory for the rank's own groups, except pipeline stages, which only send and receive."""
    found: dict[tuple[int, ...], SharedMemory | None] = {}
    for purpose in Purpose:
        ranks = layout.group_of(rank, purpose)
        group = made.get(ranks)
        if group is not None and purpose is not Purpose.PIPELINE and ranks not in found:
            found[ranks] = share_memory(group, ranks.index(rank), kernels, _JOIN_SECONDS)
    return found


def _join_lockstep(
    layout: ParallelLayout, rank: int, made: Mapping[tuple[int, ...], dist.ProcessGroup | None], host: str, backend: str
) -> Lockstep | None:
    """Creates the lockstep with groups for host tensors. The model's own groups serve if they are Gloo groups too."""
    if layout.data == 1:
        return None
    groups = dict(made) if backend == "gloo" else {}
    everyone = tuple(range(layout.num_ranks))
    for ranks in (everyone, *layout.groups(Purpose.EXPERT), *layout.groups(Purpose.PIPELINE)):
        if len(ranks) > 1 and ranks not in groups:
            groups[ranks] = _new_group(ranks, "gloo")
    all_ranks, stage = groups[everyone], groups[layout.group_of(rank, Purpose.EXPERT)]
    assert all_ranks is not None
    assert stage is not None
    stages = groups.get(layout.group_of(rank, Purpose.PIPELINE))
    passes = PassCounts(layout, layout.coordinates(rank), stage, stages)
    return Lockstep(layout, rank, all_ranks, passes, host)


def _new_group(ranks: tuple[int, ...], backend: str | None) -> dist.ProcessGroup | None:
    return dist.new_group(list(ranks), timedelta(seconds=_JOIN_SECONDS), backend)
