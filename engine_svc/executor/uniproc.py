"""An executor with one rank, in this process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from engine_svc.executor.base import Executor
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.memory_ahead import memory_ahead
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.upkeep import Upkeep
from quire.collection import without_collection
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

if TYPE_CHECKING:
    from engine_svc.runner.pending import BegunStep, PendingStep
    from engine_svc.runner.rank import RankModel


class UniprocExecutor(Executor):
    """Calls the runner directly."""

    def __init__(self) -> None:
        self._rank: RankModel | None = None
        self._pending: deque[PendingStep] = deque()
        self._begun: BegunStep | None = None  # awaits its masks

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """See Executor.load."""
        if options.parallel.num_ranks != 1:
            raise StartupError(
                "--distributed-executor-backend uni runs only one rank; use mp for --tensor-parallel-size and "
                "--pipeline-parallel-size."
            )
        layout_of(options.parallel)  # raises for options that one rank does not support
        source = create_format(weights_folder(model, options.load), options.load)
        # Imported late, because it takes a second or two and the worker answers requests by then.
        with without_collection(), memory_ahead(source, options.kernels.device):
            import torch

            from engine_svc.executor.device import choose_device
            from engine_svc.parallel.group import ParallelGroups
            from engine_svc.runner.rank import RankModel
            from engine_svc.runner.source import ModelSource

        try:
            _check_alone(model, options)
            device = choose_device(options.kernels.device, 0)
            self._rank = RankModel(ModelSource(model, options, ParallelGroups(), device), device)
            self.max_in_flight = 2 if device.type == "cuda" else 1  # on a CPU, steps run inside `submit`
            self._rank.runner.profile()
            return self._rank.runner.spec()
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise StartupError(f"Not enough memory for the model's weights: {error}") from error

    def allocate(self, size: CacheSize) -> None:
        """See Executor.allocate."""
        self._loaded().allocate(size)

    def submit(self, plan: StepPlan) -> None:
        """See Executor.submit."""
        step = self._loaded().begin(plan)
        if plan.awaits_masks:
            self._begun = step
        else:
            self._pending.append(self._loaded().finish(step))

    def send_masks(self, masks: TokenMasks) -> None:
        """See Executor.send_masks."""
        if self._begun is None:
            raise RuntimeError("masks were received, but no step is waiting for any")
        step, self._begun = self._begun, None
        self._pending.append(self._loaded().finish(step, masks))

    def collect(self) -> StepResult:
        """See Executor.collect."""
        return self._pending.popleft().result()

    def upkeep(self, command: Upkeep) -> list[str]:
        """See Executor.upkeep."""
        return self._loaded().upkeep(command)

    def close(self) -> None:
        """See Executor.close."""
        if self._rank is not None:
            self._rank.close()
        self._rank = None

    def _loaded(self) -> RankModel:
        if self._rank is None:
            raise RuntimeError("load the model first")
        return self._rank


def _check_alone(model: ModelOptions, options: EngineOptions) -> None:
    """Checks that this worker can run in the engine's process.

    Raises:
        StartupError: the steps of other workers need this one's experts, even while it is idle.
    """
    from engine_svc.loader.model import has_experts

    if options.parallel.data_parallel_size > 1 and has_experts(weights_folder(model, options.load), options):
        raise StartupError(
            "--distributed-executor-backend uni cannot be combined with --data-parallel-size for a model with "
            "experts: ranks take part in each other's steps. Leave it out."
        )
