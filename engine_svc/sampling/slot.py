"""What the sampler knows of one sequence from its first step to its last; its stages know the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.logprobs import Alternatives
from engine_svc.sampling.stages.places import checked_ids
from engine_svc.sampling.truncation import DrawMethod, draw_method
from quire.sampling import SamplingParameters

NO_ALTERNATIVES = Alternatives(0)


@dataclass(frozen=True, eq=False)
class SlotState:
    """A plan in the form that a step takes."""

    parameters: SamplingParameters
    key: np.uint64  # of the noise
    method: DrawMethod | None  # None takes the likeliest token
    alternatives: Alternatives = NO_ALTERNATIVES


GREEDY = SlotState(SamplingParameters(temperature=0.0), np.uint64(0), None)


def make_state(plan: SamplingPlan, vocab_size: int, device: torch.device) -> SlotState:
    """
    Raises:
        OverflowError: the plan's seed has more than 64 bits.
        ValueError: a token id lies outside of the vocabulary.
    """
    parameters = plan.parameters
    method = None if parameters.is_greedy else draw_method(parameters, device)
    return SlotState(parameters, np.uint64(plan.seed), method, _alternatives(parameters, vocab_size))


def _alternatives(parameters: SamplingParameters, vocab_size: int) -> Alternatives:
    named = parameters.logprob_token_ids
    checked_ids(named, vocab_size)
    return Alternatives(0, named) if named else Alternatives(parameters.logprobs or 0)
