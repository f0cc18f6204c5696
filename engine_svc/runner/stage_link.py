"""What pipeline stages send each other: hidden states to the next stage, sampled tokens from the last to the first.

Every stage has the plans, from which the sizes of all messages follow, so sizes are never sent. Ranks with the same
index in their tensor groups communicate with each other. Each has all hidden states, but sends only its share of their
values; the ranks of the next stage gather the shares among themselves, over what is the faster link if each stage has
its own machine.

A step that a stage begins may need tokens of steps that the last stage has not finished. The first stage posts the
receive for a step's tokens as soon as it has sent the hidden states. It waits for them only when a later step uses one
of their slots; until then it computes other sequences.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.stages import Stage
from engine_svc.plan import StepPlan
from engine_svc.runner.batch import FlatBatch, SlotBuffers
from engine_svc.sampling.rows import SampledRows
from engine_svc.transfer import to_device

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True)
class _Awaited:
    """Tokens that the last stage will send."""

    rows: SampledRows
    token_ids: torch.Tensor  # int64 [rows], filled once they have arrived
    coming: dist.Work


class StageLink:
    """A rank's link to the other pipeline stages. With a single stage, nothing is sent or received.

    Order of calls in each step: `take_tokens` before slots are given to other sequences, `receive`, `send`, and on the
    stage that samples, `return_tokens`.
    """

    def __init__(
        self, groups: ParallelGroups, stage: Stage, hidden_size: int, buffers: SlotBuffers, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """
        Args:
            buffers: where the sampled tokens of other stages are written.
        """
        self._group, self._tensor, self._stage, self._buffers = groups.pipeline, groups.tensor, stage, buffers
        self._device, self._dtype = device, dtype
        self._is_shared = hidden_size % groups.tensor.world_size == 0
        self._share = hidden_size // groups.tensor.world_size if self._is_shared else hidden_size
        self._awaited: deque[_Awaited] = deque()
        # A work object does not report that it is done. But a tensor sent enough steps ago has been received, so that
        # waiting for it does not block.
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._waited = 0.0

    @property
    def takes_hidden_states(self) -> bool:
        """Whether there is a stage before this one."""
        return not self._stage.is_first

    def take_waited_seconds(self) -> float:
        """Seconds this stage has waited for others since the last call. CPU only: a GPU's stream waits by itself."""
        waited, self._waited = self._waited, 0.0
        return waited

    def take_tokens(self, plan: StepPlan) -> None:
        """Waits for tokens that earlier steps have sampled for the plan's slots, and writes them to the buffers."""
        if not self._awaited:
            return
        slots = {sequence.slot for sequence in plan.scheduled}
        while any(not slots.isdisjoint(each.rows.slots) for each in self._awaited):
            self._take_oldest()

    def _take_oldest(self) -> None:
        awaited = self._awaited.popleft()
        self._wait(awaited.coming)
        self._buffers.record(awaited.rows, awaited.token_ids)

    def settle(self) -> None:
        """Waits until no communication is under way; other stages need no later step of this one to get there."""
        while self._awaited:
            self._take_oldest()
        while self._sent:
            self._sent.popleft()[0].wait()

    def receive(self, num_tokens: int) -> torch.Tensor | None:
        """Receives the hidden states [tokens, hidden_size] of the previous stage; returns None in the first stage."""
        if self._stage.is_first:
            return None
        share = torch.empty((num_tokens, self._share), dtype=self._dtype, device=self._device)
        self._wait(self._group.receive(share, self._group.rank - 1))
        return self._tensor.all_gather_last(share) if self._is_shared else share

    def send(self, plan: StepPlan, batch: FlatBatch, hidden: torch.Tensor) -> None:
        """Sends hidden states to the next stage, if there is one; the tensor may be reused at once.

        The first stage also posts the receive for the tokens that will be sampled from them.
        """
        if self._stage.is_last:
            return
        first = self._tensor.rank * self._share if self._is_shared else 0
        share = hidden[:, first : first + self._share].clone(memory_format=torch.contiguous_format)
        self._keep(share, self._group.rank + 1)
        if self._stage.is_first:
            _, rows = batch.sampled(plan)
            if rows.slots:
                token_ids = torch.empty(len(rows.slots), dtype=torch.int64, device=self._device)
                coming = self._group.receive(token_ids, self._group.world_size - 1)
                self._awaited.append(_Awaited(rows, token_ids, coming))

    def return_tokens(self, rows: SampledRows) -> None:
        """Sends the tokens recorded for sampled rows to the first stage, including those of failed sequences."""
        if self._stage.is_first or not rows.slots:
            return
        at = to_device(rows.slots, self._device), to_device(rows.num_tokens, self._device)
        self._keep(self._buffers.token_ids[at], 0)

    def _keep(self, tensor: torch.Tensor, rank: int) -> None:
        """Sends a tensor, and keeps a reference to it until it is sent."""
        self._sent.append((self._group.send(tensor, rank), tensor))
        if len(self._sent) > self._group.world_size + 1:
            self._sent.popleft()[0].wait()

    def _wait(self, work: dist.Work) -> None:
        start = time.perf_counter()
        work.wait()
        self._waited += time.perf_counter() - start
