"""What the stages of a pipeline send each other: hidden states to the next one, sampled tokens back to the first.

How much comes follows from the plans, which every stage has; so nothing is said of it. Ranks of one place in their
tensor groups talk to each other. Each has all hidden states, and sends its share of their values: the ranks of the next
stage put them together among themselves, by what is the faster link where stages are on machines of their own.

A step that a stage begins may need tokens of steps that the last stage has not finished. The first stage asks for a
step's tokens as soon as it has sent on the hidden states, and waits for them no sooner than a later step has one of
their slots: until then it computes other sequences.
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
    token_ids: torch.Tensor  # int64 [rows], once they are there
    coming: dist.Work


class StageLink:
    """One for each rank. Where there is one stage, nothing is sent or received.

    Of each step, in this order: `take_tokens` before slots get other sequences, `receive`, `send`, and, on the stage
    that samples, `return_tokens`.
    """

    def __init__(
        self, groups: ParallelGroups, stage: Stage, hidden_size: int, buffers: SlotBuffers, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """
        Args:
            buffers: whose tokens are kept up.
        """
        self._group, self._tensor, self._stage, self._buffers = groups.pipeline, groups.tensor, stage, buffers
        self._device, self._dtype = device, dtype
        self._is_shared = hidden_size % groups.tensor.world_size == 0
        self._share = hidden_size // groups.tensor.world_size if self._is_shared else hidden_size
        self._awaited: deque[_Awaited] = deque()
        # Work does not say that it is done; but what was sent so many steps ago has been taken: those have ended.
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._waited = 0.0

    @property
    def takes_hidden_states(self) -> bool:
        """Whether a stage stands before this one."""
        return not self._stage.is_first

    def take_waited_seconds(self) -> float:
        """How long this stage has waited for others since the last call, on a CPU; a GPU's stream waits by itself."""
        waited, self._waited = self._waited, 0.0
        return waited

    def take_tokens(self, plan: StepPlan) -> None:
        """Puts tokens that earlier steps have sampled into the slots that a plan is about."""
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
        """Waits until nothing is under way. Other stages need no later step of this one for that."""
        while self._awaited:
            self._take_oldest()
        while self._sent:
            self._sent.popleft()[0].wait()

    def receive(self, num_tokens: int) -> torch.Tensor | None:
        """The hidden states [tokens, hidden_size] of the stage before; None in the first."""
        if self._stage.is_first:
            return None
        share = torch.empty((num_tokens, self._share), dtype=self._dtype, device=self._device)
        self._wait(self._group.receive(share, self._group.rank - 1))
        return self._tensor.all_gather_last(share) if self._is_shared else share

    def send(self, plan: StepPlan, batch: FlatBatch, hidden: torch.Tensor) -> None:
        """Sends hidden states on, if another stage follows; the tensor may be used again at once.

        The first stage asks for what is sampled from them.
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
        """Sends what has been recorded for sampled rows to the first stage, also of those that have failed."""
        if self._stage.is_first or not rows.slots:
            return
        at = to_device(rows.slots, self._device), to_device(rows.num_tokens, self._device)
        self._keep(self._buffers.token_ids[at], 0)

    def _keep(self, tensor: torch.Tensor, rank: int) -> None:
        """Sends a tensor, and keeps it until it is sent."""
        self._sent.append((self._group.send(tensor, rank), tensor))
        if len(self._sent) > self._group.world_size + 1:
            self._sent.popleft()[0].wait()

    def _wait(self, work: dist.Work) -> None:
        start = time.perf_counter()
        work.wait()
        self._waited += time.perf_counter() - start
