"""What it costs to place a request on a worker, in seconds."""

from __future__ import annotations

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidate, RouteRequest

# A worker this full of KV blocks begins to preempt; its sequences cost more than they seem.
CROWDED_KV_USAGE = 0.95
CROWDED_FACTOR = 2.0
# Computing a prefix at two workers at the same time counts so many times: one of them is for nothing.
_DUPLICATION = 16.0


def cost_seconds(request: RouteRequest, candidate: Candidate, weights: PlacementCostOptions) -> float:
    """The time that the request takes there, what it keeps from others, and the work itself.

    The work counts beside the waiting that it causes to the request: time spent on computing what another worker has
    cached is lost to whoever comes next. Requests that have a prefix in common and arrive at once gather where the
    first of them computes it, as they wait no longer there than anywhere else; once it is computed, load spreads it.
    """
    _, cached, host_cached, sequences, most, waiting_tokens, kv_usage, per_step, per_token, _, duplicates, lacks = (
        candidate
    )
    tokens = request.known_tokens - cached - (1 - weights.host_tier_weight) * host_cached
    prefill = per_token * max(1.0, tokens)
    added = request.sequences
    own = per_token * waiting_tokens + prefill + lacks * weights.adapter_seconds
    step = per_step + per_token * (sequences + added)
    own += request.output_tokens * step
    if most and sequences + added > most:  # of those that run, one ends every so often
        own += request.output_tokens * step * (sequences + added - most) / most
    others = sequences * (prefill + request.output_tokens * per_token * added)
    cost = own + prefill + weights.interference_weight * others + _DUPLICATION * per_token * duplicates
    return cost * CROWDED_FACTOR if kv_usage > CROWDED_KV_USAGE else cost
