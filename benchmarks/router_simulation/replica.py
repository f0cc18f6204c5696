"""One router: its real core, put together as router/app.py does it, over simulated workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from prometheus_client import CollectorRegistry

from benchmarks.router_simulation.clock import EventClock
from benchmarks.router_simulation.engine import Engine
from benchmarks.router_simulation.link import SimWorker
from benchmarks.router_simulation.requests import BLOCK_SIZE, SimRequest
from quire.errors import QuireError
from quire.options.router import RouterOptions
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.rpc.status import to_request_error
from quire.v1 import common_pb2, engine_pb2
from router.dispatch import Dispatcher
from router.index.prefix_index import PrefixIndex
from router.metrics import RouterMetrics
from router.placement import PlacementTable
from router.policies.base import Weights
from router.policies.registry import make_policy
from router.roster import Roster
from router.sessions import CallerSession
from router.standing import Outliers

_BUSY_SECONDS, _IDLE_SECONDS = 0.01, 0.25  # as router/app.py keeps house


class SimSession(CallerSession):
    """A caller that reads at once."""

    def __init__(self, receive: Callable[[common_pb2.GenerationDelta], None]) -> None:
        super().__init__()
        self._receive = receive

    def forward(self, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        """See CallerSession."""
        self.deliver(list(frame.deltas))

    def deliver(self, deltas: list[common_pb2.GenerationDelta]) -> None:
        """See CallerSession."""
        for delta in deltas:
            self._receive(delta)

    def deliver_error(self, stream_id: int, error: QuireError) -> None:
        """See CallerSession."""
        self._receive(
            common_pb2.GenerationDelta(
                stream_id=stream_id, finish_reason=common_pb2.FINISH_REASON_ERROR, is_final=True,
                error=to_request_error(error),
            )
        )  # fmt: skip


class Replica:
    """A router and its one caller, whose stream ids are the requests' numbers."""

    def __init__(
        self,
        engines: Sequence[Engine],
        requests: Sequence[SimRequest],
        options: RouterOptions,
        clock: EventClock,
        random: Random,
        receive: Callable[[common_pb2.GenerationDelta], None],
    ) -> None:
        self._clock = clock
        self.index = PrefixIndex(options.max_index_blocks, clock.time)
        self.workers = [
            SimWorker(engine, self.index, clock, requests, HEARTBEAT_SECONDS * random.random()) for engine in engines
        ]
        self._roster = Roster(lambda: self.workers)
        weights = Weights(options.host_tier_weight, options.interference_weight, options.routing_temperature)
        policy = make_policy(options.routing_policy, weights, random)
        self.metrics = RouterMetrics(CollectorRegistry())
        self.table = PlacementTable(self._roster, self.index, options.routing_policy, policy, clock, self.metrics)
        self._outliers = Outliers(lambda: self.workers, clock.time)
        self.dispatcher = Dispatcher(
            self.table, self._outliers, clock, self.metrics, options.max_inflight_requests,
            options.max_queued_requests, options.max_queued_tokens, options.max_queue_seconds,
            random_bits=random.getrandbits,
        )  # fmt: skip
        self.session = SimSession(receive)
        self.dispatcher.sessions.add(self.session)
        for worker in self.workers:
            worker.on_frame, worker.on_lost = self.dispatcher.on_frame, self.dispatcher.on_lost
            worker.on_change = self._on_change
        clock.call_at(HEARTBEAT_SECONDS * random.random(), self._pulse)
        clock.call_at(HEARTBEAT_SECONDS * random.random(), self._keep_house)

    def start(self, request: SimRequest) -> None:
        """A request arrives."""
        sampling = common_pb2.SamplingParams(temperature=0)
        generation = common_pb2.Generation(
            request_id=str(request.number), sampling=sampling, tenant=request.tenant, session_id=request.session_id,
            timeout_ms=round(request.timeout_seconds * 1000), prompt_block_size=BLOCK_SIZE,
            prompt_block_keys=request.keys[: request.prompt_tokens // BLOCK_SIZE],
        )  # fmt: skip
        # Which tokens they are matters to nobody but the poison rule, which tells prompts apart by them.
        generation.prompt_token_ids.extend([request.number] + [0] * (request.prompt_tokens - 1))
        self.dispatcher.start(self.session, request.number, generation)

    def leaked(self) -> dict[str, int]:
        """What is left over in the router's tables, once all requests have ended."""
        loads = [worker.load for worker in self.workers]
        left = {
            "requests": len(self.table),
            "streams": len(self.session.streams),
            "waiting": self.dispatcher.waiting.waiting,
            "waiting tokens": self.dispatcher.waiting.tokens,
            "retries": self.dispatcher.retries_in_flight,
            "expected blocks": len(self.index.expected),
            "in flight": sum(load.inflight_requests for load in loads),
            "own load": sum(load.own_sequences + load.own_prefill_tokens + load.own_prompt_tokens for load in loads),
        }
        return {name: count for name, count in left.items() if count}

    def _pulse(self) -> None:
        self._clock.call_at(self._clock.time() + HEARTBEAT_SECONDS, self._pulse)
        self._on_change()

    def _keep_house(self) -> None:
        self._outliers.sweep()
        seconds = _BUSY_SECONDS if self.index.clean() else _IDLE_SECONDS
        self._clock.call_at(self._clock.time() + seconds, self._keep_house)

    def _on_change(self) -> None:
        self._roster.changed()
        self.dispatcher.on_change()
