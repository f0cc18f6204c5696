"""Sampling plans as tests write them: the request's parameters and what the engine adds, side by side."""

from __future__ import annotations

from typing import Any

from engine_svc.plan import SamplingPlan
from quire.sampling import SamplingParameters

_ADDED = ("seed", "suppress_token_ids", "num_prompt_logprobs")


def sampling_plan(**fields: Any) -> SamplingPlan:
    """`seed` is the noise's key."""
    added = {name: fields.pop(name) for name in _ADDED if name in fields}
    return SamplingPlan(SamplingParameters(**fields), **added)
