"""A runner that simulates a separate device for each pipeline stage, on a machine with few processors."""

from __future__ import annotations

import time

import torch

from engine_svc.plan import StepPlan
from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.runner import Runner

PASS_SECONDS = 0.32  # of all stages together, regardless of the step


class SlowRunner(Runner):
    """For `--worker-cls`: sleeps for its share of each pass."""

    def _compute_rows(self, plan: StepPlan, batch: FlatBatch, failed: dict[int, str]) -> torch.Tensor:
        time.sleep(PASS_SECONDS / self._num_stages)
        return super()._compute_rows(plan, batch, failed)
