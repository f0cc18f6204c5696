"""The sampler's own state of a slot's sequence; its chooser and its stages keep theirs."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.logprobs import Alternatives
from engine_svc.sampling.stages.places import checked_ids
from quire.sampling import SamplingParameters

NO_ALTERNATIVES = Alternatives(0)


@dataclass(frozen=True, eq=False)
class SlotState:
    """A sampling plan in the form that steps use."""

    parameters: SamplingParameters
    alternatives: Alternatives = NO_ALTERNATIVES


GREEDY = SlotState(SamplingParameters(temperature=0.0))


def make_state(plan: SamplingPlan, vocab_size: int) -> SlotState:
    """Creates the state for a plan.

    Raises:
        ValueError: a token id is outside of the vocabulary.
    """
    return SlotState(plan.parameters, _alternatives(plan.parameters, vocab_size))


def _alternatives(parameters: SamplingParameters, vocab_size: int) -> Alternatives:
    named = parameters.logprob_token_ids
    checked_ids(named, vocab_size)
    return Alternatives(0, named) if named else Alternatives(parameters.logprobs or 0)
