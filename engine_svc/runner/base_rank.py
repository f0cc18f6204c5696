"""What every rank's model has in common, whatever it computes: it sleeps and wakes up again, and is profiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import torch

from engine_svc.runner.profiler import RankProfiler
from engine_svc.runner.sleeping import Model, SleepingModel
from engine_svc.upkeep import StartProfile, StopProfile, Upkeep


class BaseRank(Generic[Model]):
    """Owner of a rank's runner. Called from the one thread that runs its steps."""

    def __init__(
        self,
        make: Callable[[], Model],
        allocate: Callable[[Model], None],
        device: torch.device,
        rank: int = 0,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            make, allocate: see SleepingModel.
            settle: see RankProfiler.

        Raises: what `make` does.
        """
        self._model = SleepingModel(make, allocate, device)
        self._profiler = RankProfiler(rank, device, settle)

    @property
    def runner(self) -> Model:
        """What runs steps.

        Raises:
            RuntimeError: it sleeps.
        """
        return self._model.awake

    def upkeep(self, command: Upkeep) -> list[str]:
        """Obeys; see there.

        Raises:
            StartupError: see SleepingModel.upkeep.
        """
        match command:
            case StartProfile():
                self._profiler.start(command)
            case StopProfile():
                return self._profiler.stop()
            case _:
                self._model.upkeep(command)
        return []

    def close(self) -> None:
        """Ends what runs beside the steps."""
        self._profiler.stop()
        if self._model.loaded is not None:
            self._model.loaded.close()
