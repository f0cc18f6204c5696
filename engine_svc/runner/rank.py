"""The life cycle of one rank's model: construction, allocation, sleeping and waking up, profiling."""

from __future__ import annotations

from pathlib import Path

import torch

from engine_svc.plan import CacheSize, StepPlan, TokenMasks
from engine_svc.runner.base_rank import BaseRank
from engine_svc.runner.pending import BegunStep, PendingStep
from engine_svc.runner.runner import Runner
from engine_svc.runner.source import ModelSource
from engine_svc.upkeep import TransferUpkeep
from quire.errors import StartupError


class RankModel(BaseRank[Runner]):
    """The model of a rank that generates tokens."""

    def __init__(self, source: ModelSource, device: torch.device, rank: int = 0) -> None:
        """
        Raises:
            StartupError: see ModelSource.load.
        """
        self._size, self._source = CacheSize(), source
        super().__init__(source.load, lambda runner: runner.allocate(self._size), device, rank)

    def allocate(self, size: CacheSize) -> None:
        """See Executor.allocate.

        Raises:
            StartupError: there is not enough host memory.
        """
        self._size = size
        try:
            self.runner.allocate(size)
        except MemoryError as error:
            raise StartupError(
                f"Not enough memory for the KV cache: {error}. Lower --kv-cache-memory-bytes, "
                "--num-gpu-blocks-override or --swap-space, whichever is set."
            ) from error

    def begin(self, plan: StepPlan) -> BegunStep:
        """See Runner.begin."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.begin(plan)

    def finish(self, step: BegunStep, masks: TokenMasks | None = None) -> PendingStep:
        """See Runner.finish."""
        with self._profiler.part("sample"):
            return self.runner.finish(step, masks)

    def why_not(self, folder: Path) -> str:
        """See ModelSource.why_not."""
        return self._source.why_not(folder)

    def receive(self, command: TransferUpkeep) -> list[str]:
        """See ModelSource.receive."""
        return self._source.receive(command)

    def _settle(self) -> None:
        if self._model.loaded is not None:
            self._model.loaded.settle()
