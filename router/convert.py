"""The router's own types to protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.v1 import router_pb2
from router.state import State
from router.worker import Worker

_STATES: Mapping[State, router_pb2.WorkerState] = MappingProxyType(
    {
        State.STARTING: router_pb2.WORKER_STATE_STARTING,
        State.READY: router_pb2.WORKER_STATE_READY,
        State.DRAINING: router_pb2.WORKER_STATE_DRAINING,
        State.UNREACHABLE: router_pb2.WORKER_STATE_UNREACHABLE,
    }
)


def worker_message(worker: Worker) -> router_pb2.Worker:
    """What ListWorkers says of a worker."""
    condition = worker.condition
    return router_pb2.Worker(
        address=worker.address,
        state=_STATES[condition.state],
        model_info=worker.model_info,
        load=worker.load.last,
        inflight_requests=worker.load.inflight_requests,
        reason=condition.reason,
    )
