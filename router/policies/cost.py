"""What it costs to place a request on a worker, in seconds."""

from __future__ import annotations

from router.policies.base import Candidate, RouteRequest, Weights

# A worker this full of KV blocks begins to preempt; its sequences cost more than they seem.
CROWDED_KV_USAGE = 0.95
CROWDED_FACTOR = 2.0


def cost_seconds(request: RouteRequest, candidate: Candidate, weights: Weights) -> float:
    """The time that the request takes there, what it keeps from others, and the work itself.

    The work counts beside the waiting that it causes to the request: time spent on computing what another worker has
    cached is lost to whoever comes next.
    """
    _, cached, host_cached, sequences, waiting_tokens, kv_usage, per_step, per_token, _ = candidate
    tokens = request.prompt_tokens - cached - (1 - weights.host_tier) * host_cached
    prefill = per_token * max(1.0, tokens)
    added = request.sequences
    own = per_token * waiting_tokens + prefill
    own += request.output_tokens * (per_step + per_token * (sequences + added))
    others = sequences * (prefill + request.output_tokens * per_token * added)
    cost = own + prefill + weights.interference * others
    return cost * CROWDED_FACTOR if kv_usage > CROWDED_KV_USAGE else cost
