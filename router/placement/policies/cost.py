"""The cost of placing a request on a worker, in seconds."""

from __future__ import annotations

import numpy as np

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidates, RouteRequest
from router.workers.load_table import Figures

# Weight of computing a prefix on two workers at the same time: one of the two computations is wasted.
_DUPLICATION = 16.0


def cost_seconds(request: RouteRequest, candidates: Candidates, weights: PlacementCostOptions) -> Figures:
    """The cost of placing the request on each candidate: the time it takes there, the delay to others, and the work
    itself.

    The work counts in addition to the wait that it causes the request: time spent on computing what another worker has
    cached is lost to later requests. Requests that share a prefix and arrive together gather where the first of them
    computes it, as they wait no longer there than anywhere else; once it is computed, load spreads them.
    """
    sequences, most, waiting_tokens, _, per_step, per_token, *_, crowding = candidates.figures
    tokens = request.known_tokens - candidates.cached_tokens
    if candidates.host_cached_tokens is not None:
        tokens -= (1 - weights.host_tier_weight) * candidates.host_cached_tokens
    prefill = per_token * np.maximum(tokens, 1.0)
    added, output = request.sequences, request.output_tokens
    own = per_token * waiting_tokens + prefill
    if candidates.lacks_adapter is not None:
        own += candidates.lacks_adapter * weights.adapter_seconds
    then = sequences + added
    decode = output * (per_step + per_token * then)
    own += decode
    own += decode * np.maximum(then - most, 0.0) / most  # queued until running sequences end
    others = sequences * (prefill + output * per_token * added)
    cost: Figures = own + prefill + weights.interference_weight * others
    if candidates.duplicate_tokens is not None:
        cost += _DUPLICATION * per_token * candidates.duplicate_tokens
    cost *= crowding
    return cost
