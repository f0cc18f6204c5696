"""The life cycle of a model served for pooling: loading, sleeping and waking up, profiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_svc.config_formats.registry import read_model_config
from engine_svc.loader.folder import weights_folder
from engine_svc.parallel.group import ParallelGroups
from engine_svc.pooling.runner import PoolingRunner
from engine_svc.pooling_form.form import pooling_form
from engine_svc.pooling_plan import PoolingPlan, PoolingResult
from engine_svc.runner.base_rank import BaseRank
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions


@dataclass(frozen=True)
class PoolingSource:
    """Where a rank's model comes from.

    Attributes:
        tokens: ids of the tokens whose logits are classes.
    """

    model: ModelOptions
    options: EngineOptions
    tokens: Sequence[int]
    groups: ParallelGroups
    device: torch.device

    def load(self) -> PoolingRunner:
        """Loads the model.

        Raises:
            StartupError: see PoolingRunner.
        """
        folder = weights_folder(self.model, self.options.load)
        form = pooling_form(read_model_config(folder, self.options.form), folder, self.options.pooling)
        return PoolingRunner(folder, form, self.tokens, self.options, self.device, self.groups)


class PoolingRank(BaseRank[PoolingRunner]):
    """A rank of a pooling worker. Its runner must allocate before the first step."""

    def __init__(self, source: PoolingSource) -> None:
        """
        Raises: see PoolingSource.load.
        """
        self.number = source.groups.rank
        super().__init__(lambda *_: source.load(), lambda runner: runner.allocate(), source.device, self.number)

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.run(plan)

    def reset_encoder_cache(self) -> None:
        """Does nothing: a step keeps nothing of the images that it encodes."""
