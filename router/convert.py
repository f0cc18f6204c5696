"""Converts the router's own types to protobuf."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from quire.bounds import Bound
from quire.v1 import router_pb2
from router.placement.decisions import Decision
from router.workers.base import Worker
from router.workers.load_table import KV_USAGE, PREFILL_TOKENS, SEQUENCES
from router.workers.state import State

_STATES: Mapping[State, router_pb2.WorkerState] = MappingProxyType(
    {
        State.STARTING: router_pb2.WORKER_STATE_STARTING,
        State.READY: router_pb2.WORKER_STATE_READY,
        State.DRAINING: router_pb2.WORKER_STATE_DRAINING,
        State.UNREACHABLE: router_pb2.WORKER_STATE_UNREACHABLE,
        State.EJECTED: router_pb2.WORKER_STATE_EJECTED,
        State.PAUSED: router_pb2.WORKER_STATE_PAUSED,
    }
)
# Field of PlacementWeights → option, and its bounds.
_WEIGHTS: Mapping[str, tuple[str, Bound]] = MappingProxyType(
    {
        "host_tier": ("host_tier_weight", Bound(0, 1)),
        "interference": ("interference_weight", Bound(0)),
        "temperature": ("routing_temperature", Bound(0)),
    }
)


def worker_message(worker: Worker) -> router_pb2.Worker:
    """A worker as ListWorkers reports it."""
    condition, speed = worker.condition, worker.load.speed
    return router_pb2.Worker(
        address=worker.address,
        state=_STATES[condition.state],
        model_info=worker.model_info,
        load=worker.load.last,
        inflight_requests=worker.load.inflight_requests,
        reason=condition.reason,
        cached_blocks=worker.blocks.num_blocks,
        host_cached_blocks=worker.blocks.num_host_blocks,
        prefill_tokens_per_second=1 / speed.seconds_per_token if speed.known else 0,
        seconds_per_step=speed.seconds_per_step if speed.known else 0,
        prompt_tokens=worker.prompt_tokens,
        cached_prompt_tokens=worker.cached_prompt_tokens,
    )


def explanation(decision: Decision, asked: router_pb2.PlacementWeights) -> router_pb2.ExplainPlacementResponse:
    """A placement in full, together with what it would have been with other weights.

    Raises:
        InvalidRequest: a weight is out of bounds.
    """
    changed = {}
    for field, value in asked.ListFields():
        option, bound = _WEIGHTS[field.name]
        bound.check(f"weights.{field.name}", value)
        changed[option] = value
    weights = dataclasses.replace(decision.weights, **changed)
    answer = router_pb2.ExplainPlacementResponse(
        request_id=decision.request.request_id,
        time_seconds=decision.time_seconds,
        policy=decision.policy,
        attempt=decision.attempt,
        decision_microseconds=decision.seconds * 1e6,
        queued_seconds=decision.queued_seconds,
        prompt_tokens=decision.request.prompt_tokens,
        chosen=decision.chosen,
        would_choose=decision.would_choose(weights),
    )
    candidates, in_host = decision.candidates, decision.candidates.host_cached_tokens
    costs, other_costs = decision.costs(decision.weights), decision.costs(weights)
    for place, address in enumerate(decision.addresses):
        answer.candidates.add(
            address=address,
            cached_tokens=int(candidates.cached_tokens[place]),
            host_cached_tokens=0 if in_host is None else int(in_host[place]),
            waiting_prefill_tokens=int(candidates.figures[PREFILL_TOKENS, place]),
            sequences=int(candidates.figures[SEQUENCES, place]),
            kv_usage=candidates.figures[KV_USAGE, place],
            cost_seconds=costs[place],
            cost_with_weights_seconds=other_costs[place],
        )
    return answer
