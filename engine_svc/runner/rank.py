"""The model of one rank through its life: made, allocated, asleep and awake again, profiled."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import torch

from engine_svc.plan import StepPlan, TokenMasks
from engine_svc.runner.offload import OffloadedTensors
from engine_svc.runner.pending import BegunStep, PendingStep
from engine_svc.runner.profiler import RankProfiler
from engine_svc.runner.runner import Runner
from engine_svc.upkeep import ReleaseMemory, RestoreCache, RestoreWeights, StartProfile, StopProfile, Upkeep


class RankModel:
    """Owner of a rank's runner. Called from the one thread that runs its steps.

    On a GPU the weights of one that sleeps lie in host memory, or nowhere. On a CPU they stay where they are, or are
    nowhere: then the runner goes, and another one is made of the same files.
    """

    def __init__(self, make: Callable[[], Runner], device: torch.device, rank: int = 0) -> None:
        """
        Args:
            make: loads the model.

        Raises: what that does.
        """
        self._make = make
        self._device = device
        self._runner: Runner | None = make()
        self._num_blocks, self._num_host_blocks = 0, 0
        self._offloaded: OffloadedTensors | None = None
        self._profiler = RankProfiler(rank, device, self._settle)

    @property
    def runner(self) -> Runner:
        """What runs steps.

        Raises:
            RuntimeError: it sleeps.
        """
        if self._runner is None:
            raise RuntimeError("the model sleeps, and its weights were given back")
        return self._runner

    def allocate(self, num_blocks: int, num_host_blocks: int) -> None:
        """See Executor.allocate."""
        self._num_blocks, self._num_host_blocks = num_blocks, num_host_blocks
        self.runner.allocate(num_blocks, num_host_blocks)

    def begin(self, plan: StepPlan) -> BegunStep:
        """See Runner.begin."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.begin(plan)

    def finish(self, step: BegunStep, masks: TokenMasks | None = None) -> PendingStep:
        """See Runner.finish."""
        with self._profiler.part("sample"):
            return self.runner.finish(step, masks)

    def upkeep(self, command: Upkeep) -> list[str]:
        """Obeys; see there.

        Raises:
            StartupError: the model cannot be loaded again.
        """
        match command:
            case ReleaseMemory():
                self._release(command.forgets_weights)
            case RestoreWeights():
                self._restore_weights()
            case RestoreCache():
                self.runner.allocate(self._num_blocks, self._num_host_blocks)
            case StartProfile():
                self._profiler.start(command)
            case StopProfile():
                return self._profiler.stop()
        return []

    def _settle(self) -> None:
        if self._runner is not None:
            self._runner.settle()

    def close(self) -> None:
        """Ends what runs beside the steps."""
        self._profiler.stop()
        if self._runner is not None:
            self._runner.close()

    def _release(self, forgets_weights: bool) -> None:
        """More than was given back before, or as much."""
        if self._runner is not None:
            self._runner.release_caches()
        if forgets_weights and self._runner is not None:
            self._runner.close()
            self._runner = self._offloaded = None
        gc.collect()  # what is recorded and what it was recorded from refer to each other
        if self._runner is not None and self._offloaded is None and self._device.type == "cuda":
            self._offloaded = OffloadedTensors.of_device(self._device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        _trim()

    def _restore_weights(self) -> None:
        if self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        elif self._runner is None:
            self._runner = self._make()


def _trim() -> None:
    """What the C library keeps for reuse goes back to the system, where it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
