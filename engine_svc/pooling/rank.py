"""A model that is served for pooling through its life: made, asleep and awake again, profiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_svc.pooling.runner import PoolingRunner
from engine_svc.pooling_plan import PoolingPlan, PoolingResult
from engine_svc.runner.profiler import RankProfiler
from engine_svc.runner.sleeping import SleepingModel
from engine_svc.upkeep import StartProfile, StopProfile, Upkeep


class PoolingRank:
    """Owner of the runner. Called from the one thread that runs its steps."""

    def __init__(self, make: Callable[[], PoolingRunner], device: torch.device) -> None:
        """
        Args:
            make: loads the model.

        Raises: what that does.
        """
        self._model = SleepingModel(make, lambda runner: runner.allocate(), device)
        self._profiler = RankProfiler(0, device, lambda: None)
        self.runner.allocate()

    @property
    def runner(self) -> PoolingRunner:
        """What runs steps.

        Raises:
            RuntimeError: it sleeps.
        """
        return self._model.awake

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.run(plan)

    def upkeep(self, command: Upkeep) -> list[str]:
        """See RankModel.upkeep."""
        match command:
            case StartProfile():
                self._profiler.start(command)
            case StopProfile():
                return self._profiler.stop()
            case _:
                self._model.upkeep(command)
        return []

    def close(self) -> None:
        """See RankModel.close."""
        self._profiler.stop()
