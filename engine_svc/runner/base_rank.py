"""What all ranks have in common, whatever their model computes: sleeping, waking up and profiling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic

import torch

from engine_svc.runner.profiler import RankProfiler
from engine_svc.runner.sleeping import Model, SleepingModel
from engine_svc.upkeep import (
    CheckWeights,
    ReleaseMemory,
    RestoreCache,
    RestoreWeights,
    StartProfile,
    StopProfile,
    TransferUpkeep,
    Upkeep,
)

_NOT_REPLACED = "weights of a worker for pooling or encoding cannot be replaced: start workers with the new ones"


class BaseRank(Generic[Model]):
    """Owns a rank's runner. Called only from the thread that runs its steps."""

    def __init__(
        self, make: Callable[[str, str], Model], allocate: Callable[[Model], None], device: torch.device, rank: int = 0
    ) -> None:
        """
        Args:
            make, allocate: see SleepingModel.

        Raises: whatever `make` raises.
        """
        self._model = SleepingModel(make, allocate, device)
        self._profiler = RankProfiler(rank, device, self._settle)

    @property
    def runner(self) -> Model:
        """The runner of steps.

        Raises:
            RuntimeError: the model sleeps and its weights were given back.
        """
        return self._model.awake

    def upkeep(self, command: Upkeep) -> list[str]:
        """Executes the command and returns its lines of text, if any; see engine_svc.upkeep.

        Raises:
            StartupError: see SleepingModel.upkeep.
        """
        match command:
            case StartProfile():
                self._profiler.start(command)
            case StopProfile():
                return self._profiler.stop()
            case CheckWeights():
                return [why] if (why := self.why_not(Path(command.folder))) else []
            case ReleaseMemory() | RestoreWeights() | RestoreCache():
                self._settle()  # Gloo reads nothing more from a rank whose message comes after its receive is freed
                self._model.upkeep(command)
            case _:
                return self.receive(command)
        return []

    def why_not(self, folder: Path) -> str:
        """Why a folder's weights cannot replace the served ones; empty if they can, which a subclass has to know."""
        return _NOT_REPLACED

    def receive(self, command: TransferUpkeep) -> list[str]:
        """Receives weights from a trainer; returns why not, if so, unless a subclass can."""
        return [_NOT_REPLACED]

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Does nothing: steps run in the caller's thread, so nothing appears or ends by itself."""

    def check_alive(self, asks: bool = False) -> None:
        """Does nothing; see `wake_by`."""

    def _settle(self) -> None:
        """Waits until no communication between ranks is under way; there is none unless a subclass has some."""

    def close(self) -> None:
        """Stops profiling and everything else that runs in the background of the steps."""
        self._profiler.stop()
        if self._model.loaded is not None:
            self._model.loaded.close()
