"""One router: its real core over simulated workers."""

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
from router.core import RouterCore
from router.metrics import RouterMetrics
from router.requests.sessions import CallerSession


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
        self.metrics = RouterMetrics(CollectorRegistry())
        self._core = core = RouterCore(options, lambda: self.workers, clock, self.metrics, random)
        self.index, self.table, self.dispatcher = core.index, core.table, core.dispatcher
        self.workers = [
            SimWorker(engine, self.index, clock, requests, HEARTBEAT_SECONDS * random.random()) for engine in engines
        ]
        self.session = SimSession(receive)
        self.dispatcher.sessions.add(self.session)
        for worker in self.workers:
            worker.on_frame, worker.on_lost = self.dispatcher.on_frame, self.dispatcher.on_lost
            worker.on_change = core.on_change
        clock.call_at(HEARTBEAT_SECONDS * random.random(), self._beat)
        clock.call_at(HEARTBEAT_SECONDS * random.random(), self._keep_house)

    def start(self, request: SimRequest) -> None:
        """A request arrives."""
        sampling = common_pb2.SamplingParams(temperature=0)
        generation = common_pb2.Generation(
            request_id=str(request.number), sampling=sampling, tenant=request.tenant, session_id=request.session_id,
            timeout_ms=round(request.timeout_seconds * 1000), prompt_block_size=BLOCK_SIZE,
            prompt_block_keys=request.keys[: request.prompt_tokens // BLOCK_SIZE],
        )  # fmt: skip
        # Which tokens they are matters to nobody but the crash suspects, which tell prompts apart by them.
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

    def _beat(self) -> None:
        self._clock.call_at(self._clock.time() + HEARTBEAT_SECONDS, self._beat)
        self._core.on_change()

    def _keep_house(self) -> None:
        self._clock.call_at(self._clock.time() + self._core.keep_house(), self._keep_house)
