"""What the sampler knows of one sequence from its first step to its last; its chooser and its stages know the rest."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.logprobs import Alternatives
from engine_svc.sampling.stages.places import checked_ids
from quire.sampling import SamplingParameters

NO_ALTERNATIVES = Alternatives(0)


@dataclass(frozen=True, eq=False)
class SlotState:
    """A plan in the form that a step takes."""

    parameters: SamplingParameters
    alternatives: Alternatives = NO_ALTERNATIVES


GREEDY = SlotState(SamplingParameters(temperature=0.0))


def make_state(plan: SamplingPlan, vocab_size: int) -> SlotState:
    """
    Raises:
        ValueError: a token id lies outside of the vocabulary.
    """
    return SlotState(plan.parameters, _alternatives(plan.parameters, vocab_size))


def _alternatives(parameters: SamplingParameters, vocab_size: int) -> Alternatives:
    named = parameters.logprob_token_ids
    checked_ids(named, vocab_size)
    return Alternatives(0, named) if named else Alternatives(parameters.logprobs or 0)
