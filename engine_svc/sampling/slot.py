"""What the sampler knows of one sequence from its first step to its last; its stages know the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.truncation import DrawMethod, draw_method
from quire.sampling import SamplingParameters


@dataclass(frozen=True, eq=False)
class SlotState:
    """A plan in the form that a step takes."""

    parameters: SamplingParameters
    key: np.uint64  # of the noise
    method: DrawMethod | None  # None takes the likeliest token


GREEDY = SlotState(SamplingParameters(temperature=0.0), np.uint64(0), None)


def make_state(plan: SamplingPlan, device: torch.device) -> SlotState:
    """
    Raises:
        OverflowError: the plan's seed has more than 64 bits.
    """
    parameters = plan.parameters
    method = None if parameters.is_greedy else draw_method(parameters, device)
    return SlotState(parameters, np.uint64(plan.seed), method)
