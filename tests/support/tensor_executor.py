"""All tensor-parallel ranks of a worker in this process, each in a thread, without further processes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from engine_svc.executor.agreement import Agreement, joint_spec
from engine_svc.executor.base import Executor
from engine_svc.parallel.dual_batch import DualBatch
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout, Purpose, layout_of
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.runner.pending import BegunStep, PendingStep
from engine_svc.runner.runner import Runner
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

_Result = TypeVar("_Result")
_SECONDS, _MOST_RANKS = 120, 8


class Meeting:
    """The place where ranks of a group exchange tensors."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._shown: list[torch.Tensor | None] = [None] * size

    def show(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Waits for all ranks; returns the tensors of all of them."""
        self._shown[rank] = tensor.clone()
        self._barrier.wait(_SECONDS)
        found = [each for each in self._shown if each is not None]
        self._barrier.wait(_SECONDS)
        return found

    def abandon(self) -> None:
        """Makes all waiting ranks raise, because another rank has failed."""
        self._barrier.abort()


@dataclass(frozen=True)
class ThreadGroup(ParallelGroup):
    """Ranks that are threads."""

    meeting: Meeting = Meeting(1)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.dual_batch.communicate(
            lambda: tensor.copy_(torch.stack(self.meeting.show(self.rank, tensor)).sum(0))
        )

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.dual_batch.communicate(lambda: torch.cat(self.meeting.show(self.rank, tensor), dim=-1))

    def exchange_rows(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """See ParallelGroup; here every rank must send the same number of rows to all others."""
        assert len({*sent, *received}) == 1
        return self.dual_batch.communicate(
            lambda: torch.cat([each.split(list(sent))[self.rank] for each in self.meeting.show(self.rank, rows)])
        )

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(self.meeting.show(self.rank, tensor)[0])


class TensorExecutor(Executor):
    """Runs a step when it is submitted."""

    max_in_flight = 2

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self._begun: list[BegunStep] = []
        self._pending: deque[list[PendingStep]] = deque()
        self._threads = ThreadPoolExecutor(_MOST_RANKS)

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        self._layout = layout_of(options.parallel)
        self._agreement = Agreement(self._layout)
        self._groups = groups_of(self._layout)
        self.runners = self._all(lambda groups: Runner(model, options, groups, torch.device("cpu")), self._groups)
        return joint_spec([runner.spec() for runner in self.runners])

    def _all(self, call: Callable[..., _Result], *arguments: Sequence[object]) -> list[_Result]:
        """Calls a function on all ranks at once; if one fails, the others do not wait for it."""

        def guarded(*each: object) -> _Result:
            try:
                return call(*each)
            except BaseException:
                for groups in self._groups:
                    groups.tensor.meeting.abandon()  # type: ignore[attr-defined]
                    groups.decode_context.meeting.abandon()  # type: ignore[attr-defined]
                raise

        futures = [self._threads.submit(guarded, *each) for each in zip(*arguments, strict=True)]
        errors = [error for future in futures if (error := future.exception(_SECONDS))]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def allocate(self, size: CacheSize) -> None:
        self._all(lambda runner: runner.allocate(size), self.runners)

    def submit(self, plan: StepPlan) -> None:
        self._agreement.begin(plan)
        self._begun = self._all(lambda runner: runner.begin(plan), self.runners)
        if not plan.awaits_masks:
            self.send_masks(TokenMasks())

    def send_masks(self, masks: TokenMasks) -> None:
        self._pending.append(self._all(lambda runner, step: runner.finish(step, masks), self.runners, self._begun))

    def collect(self) -> StepResult:
        return self._agreement.of([pending.result() for pending in self._pending.popleft()])

    def upkeep(self, command: Upkeep) -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        self.runners = []
        self._threads.shutdown()


def groups_of(layout: ParallelLayout) -> list[ParallelGroups]:
    """The groups of every rank."""
    made: dict[tuple[int, ...], Meeting] = {}

    halves = [DualBatch() for _ in range(layout.num_ranks)]

    def join(rank: int, purpose: Purpose) -> ThreadGroup:
        own = layout.group_of(rank, purpose)
        meeting = made.setdefault(own, Meeting(len(own)))
        return ThreadGroup(own.index(rank), len(own), dual_batch=halves[rank], meeting=meeting)

    return [
        ParallelGroups(
            layout, rank, tensor=join(rank, Purpose.TENSOR), expert=join(rank, Purpose.EXPERT),
            decode_context=join(rank, Purpose.DECODE_CONTEXT), dual_batch=halves[rank],
        )
        for rank in range(layout.num_ranks)
    ]  # fmt: skip
