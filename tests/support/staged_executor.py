"""All pipeline stages in this process, running one after the other, without processes or sockets."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch

from engine_svc.executor.agreement import Agreement, joint_spec
from engine_svc.executor.base import Executor
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.runner.pending import BegunStep, PendingStep
from engine_svc.runner.runner import Runner
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions


@dataclass(frozen=True)
class _Coming:
    """A message that may not have arrived yet; waiting for it lets another stage run."""

    tensor: torch.Tensor
    sent: deque[torch.Tensor]
    turn: threading.Condition

    def wait(self) -> None:
        with self.turn:
            assert self.turn.wait_for(lambda: self.sent, timeout=60)
            self.tensor.copy_(self.sent.popleft())


class _Sent:
    def wait(self) -> None:
        pass


@dataclass(frozen=True)
class LocalGroup(ParallelGroup):
    """Ranks that send each other messages through queues."""

    mail: dict[tuple[int, int], deque[torch.Tensor]] = field(default_factory=lambda: defaultdict(deque))  # from, to
    turn: threading.Condition = field(default_factory=threading.Condition)

    def send(self, tensor: torch.Tensor, rank: int) -> _Sent:  # type: ignore[override]
        with self.turn:
            self.mail[self.rank, rank].append(tensor.clone())
            self.turn.notify_all()
        return _Sent()

    def receive(self, tensor: torch.Tensor, rank: int) -> _Coming:  # type: ignore[override]
        return _Coming(tensor, self.mail[rank, self.rank], self.turn)


class StagedExecutor(Executor):
    """Runs a step through all stages when it is submitted; allows as many steps in flight as with processes."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.plans: list[StepPlan] = []
        self._begun: list[BegunStep] = []
        self._pending: deque[list[PendingStep]] = deque()

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        self._layout = layout_of(options.parallel)
        self._agreement = Agreement(self._layout)
        self.max_in_flight = self._layout.pipeline + 1
        first = LocalGroup(0, self._layout.pipeline)
        self._turn = first.turn
        for rank in range(self._layout.pipeline):
            group = replace(first, rank=rank)
            groups = ParallelGroups(self._layout, rank, pipeline=group)
            self.runners.append(Runner(model, options, groups, torch.device("cpu")))
        return joint_spec([runner.spec() for runner in self.runners])

    def allocate(self, size: CacheSize) -> None:
        """Each rank warms up with its own steps, which are the same on all ranks; here they also run one at a time."""

        def allocate(runner: Runner) -> None:
            with self._turn:
                runner.allocate(size)

        # Threads that have computed with MKL must not end at the same time: its clean-up of threads may never return.
        with contextlib.ExitStack() as ending:
            threads = [ending.enter_context(ThreadPoolExecutor(1)) for _ in self.runners]
            ended = [each.submit(allocate, runner) for each, runner in zip(threads, self.runners, strict=True)]
            for each in ended:
                each.result()

    def submit(self, plan: StepPlan) -> None:
        self._agreement.begin(plan)
        assert len(self._pending) < self.max_in_flight
        self.plans.append(plan)
        self._begun = [runner.begin(plan) for runner in self.runners]
        if not plan.awaits_masks:
            self._finish(None)

    def send_masks(self, masks: TokenMasks) -> None:
        self._finish(masks)

    def _finish(self, masks: TokenMasks | None) -> None:
        pairs = zip(self.runners, self._begun, strict=True)
        self._pending.append([runner.finish(step, masks) for runner, step in pairs])
        self._begun = []

    def collect(self) -> StepResult:
        return self._agreement.of([pending.result() for pending in self._pending.popleft()])

    def upkeep(self, command: Upkeep) -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        self.runners = []
