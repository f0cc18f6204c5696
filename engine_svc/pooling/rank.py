"""The life cycle of a model served for pooling: loading, sleeping and waking up, profiling."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_svc.pooling.runner import PoolingRunner
from engine_svc.pooling_plan import PoolingPlan, PoolingResult
from engine_svc.runner.base_rank import BaseRank


class PoolingRank(BaseRank[PoolingRunner]):
    """The rank of a pooling worker."""

    def __init__(self, make: Callable[[], PoolingRunner], device: torch.device) -> None:
        """
        Args:
            make: loads the model.

        Raises: what `make` raises.
        """
        super().__init__(lambda _: make(), lambda runner: runner.allocate(), device)
        self.runner.allocate()

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.run(plan)

    def reset_encoder_cache(self) -> None:
        """Does nothing: a step keeps nothing of the images that it encodes."""
