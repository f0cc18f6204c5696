"""One router's connection to one simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.router_simulation.clock import EventClock
from benchmarks.router_simulation.engine import Engine
from benchmarks.router_simulation.requests import BLOCK_SIZE, SimRequest
from quire.errors import QuireError, Unavailable
from quire.rpc.settings import HEARTBEAT_SECONDS, LATE_SECONDS, LOST_SECONDS
from quire.runners import GENERATE, wrong_runner
from quire.v1 import common_pb2, engine_pb2
from router.index.prefix_index import PrefixIndex, WorkerBlocks
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.state import Condition, Facts, Health, assess

_WIRE_SECONDS = 0.001  # from one end to the other
_CACHE_EVENT_SECONDS = 0.004
# As quire/rpc/session.py and router/index/feed.py have them.
_SESSION_RETRY_SECONDS = 0.25
_FEED_RETRY_SECONDS = 0.5
_INQUEST_SECONDS = 0.02
_MODEL = "simulated"


class SimWorker(Worker):
    """A worker as `router.workers.remote` would show it, without sockets."""

    def __init__(
        self,
        engine: Engine,
        index: PrefixIndex,
        clock: EventClock,
        requests: Sequence[SimRequest],
        phase: float,
    ) -> None:
        """
        Args:
            phase: when the first heartbeat comes, in seconds.
        """
        super().__init__(engine.name)
        spec = engine.spec
        self.engine = engine
        info = common_pb2.ModelInfo(
            served_model_names=[_MODEL], block_size=BLOCK_SIZE, num_kv_blocks=spec.num_blocks,
            max_num_seqs=spec.max_num_seqs, max_num_batched_tokens=spec.max_num_batched_tokens, fingerprint="same",
        )  # fmt: skip
        self.learn(info)
        self.on_frame: Callable[[Worker, engine_pb2.EngineServiceSessionResponse], None]
        self.on_lost: Callable[[Worker, QuireError], None]
        self.on_change: Callable[[], None]
        self._index = index
        self._clock = clock
        self._requests = requests
        self._blocks = index.join()
        self._following = True  # the cache events of the engine's process
        self._feed_number = 0
        self._health = Health.SERVING
        self._connected = True
        self._connection = 0  # number of the session: nothing of an old one arrives
        self._last_heard = 0.0
        engine.listeners.append(self)
        clock.call_at(phase, self._beat)

    @property
    def condition(self) -> Condition:
        """See Worker."""
        now = self._clock.time()
        return assess(
            Facts(
                retired=False, connected=self._connected, was_connected=True,
                late=now - self._last_heard > LATE_SECONDS,
                stalled=self.load.stalled(now, self.engine.spec.max_num_batched_tokens) > 0,
                health=self._health,
                was_serving=True, has_model=True, trouble="",
                ejected=self.ejection.reason if self.ejection.ejected_until > now else "",
            )
        )  # fmt: skip

    @property
    def blocks(self) -> WorkerBlocks:
        """See Worker."""
        return self._blocks

    def start_generation(
        self, stream_id: int, assignment: Assignment, timeout_ms: int, *, hands_over: bool = False
    ) -> None:
        """See Worker."""
        if not self._connected:
            raise Unavailable("There is no connection.")
        request = self._requests[int(assignment.generation.request_id)]
        progress = list(assignment.progress[0].token_ids) if assignment.progress else []
        assert progress == request.tokens(0, len(progress)), "the request goes on from what it never generated"
        self._post(self._start, stream_id, request, len(progress))

    def abort(self, stream_id: int) -> None:
        """See Worker."""
        if self._connected:
            self._post(self._abort, stream_id)

    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """See Worker. Simulated callers read no text."""

    def hear(self, stream_id: int, append: engine_pb2.AudioAppend) -> None:
        """See Worker. Simulated callers say nothing."""

    async def pool(self, request: common_pb2.PoolRequest, model: str, seconds: float) -> common_pb2.PoolResponse:
        """See Worker. Simulated models generate."""
        raise wrong_runner(model, GENERATE)

    def when_dead(self, callback: Callable[[], None]) -> None:
        """See Worker."""
        if not self.engine.alive:
            self._clock.call_at(self._clock.time() + _INQUEST_SECONDS, callback)

    def send(self, deltas: list[common_pb2.GenerationDelta]) -> None:
        """Deltas from the engine."""
        self._post(self._take, engine_pb2.EngineServiceSessionResponse(deltas=deltas))

    def cache_changed(self, removed: Sequence[int], stored: Sequence[int]) -> None:
        """Cache events from the engine."""
        when = self._clock.time() + _CACHE_EVENT_SECONDS
        self._clock.call_at(when, self._apply, self._feed_number, removed, stored)

    def drain_began(self) -> None:
        """The engine's health becomes NOT_SERVING."""
        self._post(self._take_health, Health.NOT_SERVING)

    def process_died(self) -> None:
        """The engine's process has ended, and its sockets with it."""
        self._following = False
        self._feed_number += 1
        self._post(self._lose, "connection reset")

    def process_began(self) -> None:
        """There is a new one."""
        now = self._clock.time()
        self._clock.call_at(now + _SESSION_RETRY_SECONDS, self._connect)
        self._clock.call_at(now + _FEED_RETRY_SECONDS, self._follow, self._feed_number)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Something goes over the session, in either direction."""
        self._clock.call_at(self._clock.time() + _WIRE_SECONDS, self._arrive, self._connection, callback, *arguments)

    def _arrive(self, connection: int, callback: Callable[..., None], *arguments: object) -> None:
        if self._connected and connection == self._connection:
            callback(*arguments)

    def _start(self, stream_id: int, request: SimRequest, position: int) -> None:
        if self.engine.alive:
            self.engine.start(self, stream_id, request, position)

    def _abort(self, stream_id: int) -> None:
        if self.engine.alive:
            self.engine.abort(self, stream_id)

    def _take(self, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        self.on_frame(self, frame)

    def _take_health(self, health: Health) -> None:
        self._health = health
        self.on_change()

    def _beat(self) -> None:
        """The engine's heartbeat, or the router's look for one that is missing."""
        now = self._clock.time()
        self._clock.call_at(now + HEARTBEAT_SECONDS, self._beat)
        answers = self.engine.alive and not self.engine.frozen
        if not self._connected:
            if answers and self._last_heard < now - LOST_SECONDS:  # it has thawed
                self.engine.abort_all(self)
                self._connect()
        elif answers:
            self._last_heard = now
            self.load.heartbeat(self.engine.load(), now)
        elif self.engine.alive and now - self._last_heard > LOST_SECONDS:
            self._lose(f"no heartbeat for more than {LOST_SECONDS:g} s")

    def _connect(self) -> None:
        if self.engine.alive and not self.engine.frozen and not self._connected:
            self._connected = True
            self._connection += 1
            self._last_heard = self._clock.time()
            self._take_health(Health.NOT_SERVING if self.engine.draining else Health.SERVING)

    def _lose(self, why: str) -> None:
        self._connected = False
        self._connection += 1
        self.on_change()
        self.on_lost(self, Unavailable(f"Engine worker {self.address}: {why}"))

    def _follow(self, feed_number: int) -> None:
        """A snapshot of the new process's cache replaces what was known of the old one's."""
        if feed_number != self._feed_number or not self.engine.alive:
            return
        self._feed_number += 1  # what is on its way is in the snapshot
        self._following = True
        self._index.leave(self._blocks)
        self._blocks = self._index.join()
        self._index.store(self._blocks, self.engine.cache.keys, on_host=False)

    def _apply(self, feed_number: int, removed: Sequence[int], stored: Sequence[int]) -> None:
        if self._following and feed_number == self._feed_number:
            self._index.remove(self._blocks, removed, on_host=False)
            self._index.store(self._blocks, stored, on_host=False)
