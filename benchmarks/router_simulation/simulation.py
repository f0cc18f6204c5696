"""A fleet, a trace and a policy: what happens, from the first request to the last delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.router_simulation.clock import EventClock
from benchmarks.router_simulation.engine import Engine
from benchmarks.router_simulation.faults import Fault, inflict
from benchmarks.router_simulation.history import History, Outcome
from benchmarks.router_simulation.job import EngineSpec, Job
from benchmarks.router_simulation.oracle import Oracle
from benchmarks.router_simulation.replica import Replica
from benchmarks.router_simulation.requests import Conversation, SimRequest
from quire.options.router import RouterOptions
from quire.v1 import common_pb2

_SETTLE_SECONDS = 3.0  # after the last delta, for what the index still counts on to be confirmed


@dataclass(frozen=True)
class Scenario:
    """All that decides what happens."""

    conversations: Sequence[Conversation]
    seconds: float  # over which they begin
    engines: Sequence[EngineSpec]
    options: RouterOptions = RouterOptions()
    seed: int = 0
    replicas: int = 1
    faults: Sequence[Fault] = field(default=())


class Simulation:
    """Runs a scenario once."""

    def __init__(self, scenario: Scenario) -> None:
        self.clock = EventClock()
        self.history = History()
        self._oracle = Oracle()
        random = Random(scenario.seed)
        requests = [request for conversation in scenario.conversations for _, request in conversation.turns]
        self.requests = sorted(requests, key=lambda request: request.number)
        self.engines = [
            Engine(f"w{number}", spec, self.clock, self._arrived) for number, spec in enumerate(scenario.engines)
        ]
        self.replicas = [
            Replica(self.engines, self.requests, scenario.options, self.clock, random, self._take)
            for _ in range(scenario.replicas)
        ]
        self._next: dict[int, tuple[Replica, Conversation, int]] = {}  # request → its place
        self._to_come = len(requests)
        for conversation in scenario.conversations:
            replica = random.choice(self.replicas)
            self.clock.call_at(conversation.start * scenario.seconds, self._ask, replica, conversation, 0)
        for fault in scenario.faults:
            self.clock.call_at(fault.at, self._inflict, fault)

    def run(self) -> History:
        """To the end of the last request, and a while longer."""
        self.clock.run(lambda: not self._to_come)
        end = self.clock.time() + _SETTLE_SECONDS
        self.clock.run(lambda: self.clock.time() >= end)
        return self.history

    def _ask(self, replica: Replica, conversation: Conversation, turn: int) -> None:
        request = conversation.turns[turn][1]
        now = self.clock.time()
        self.history.outcomes[request.number] = Outcome(now, oracle_tokens=self._oracle.arrive(request))
        self._next[request.number] = (replica, conversation, turn)
        if request.abort_seconds:
            self.clock.call_at(now + request.abort_seconds, self._abort, replica, request)
        replica.start(request)

    def _take(self, delta: common_pb2.GenerationDelta) -> None:
        self.history.take(self.clock.time(), delta.stream_id, delta)
        if delta.is_final:
            self._go_on(delta.stream_id)

    def _go_on(self, number: int) -> None:
        """A request has ended: the next turn comes."""
        self._to_come -= 1
        replica, conversation, turn = self._next[number]
        if turn + 1 < len(conversation.turns):
            think = conversation.turns[turn + 1][0]
            self.clock.call_at(self.clock.time() + think, self._ask, replica, conversation, turn + 1)

    def _abort(self, replica: Replica, request: SimRequest) -> None:
        outcome = self.history.outcomes[request.number]
        if not outcome.finals:
            outcome.aborted = True
            replica.dispatcher.abort(replica.session, request.number)
            self._go_on(request.number)

    def _arrived(self, engine: Engine, job: Job) -> None:
        self.history.note("arrived", self.clock.time(), engine.name, job.request.number, job.position)
        self.history.outcomes[job.request.number].workers.append(engine.name)

    def _inflict(self, fault: Fault) -> None:
        inflict(fault, self.engines[fault.engine], self.clock)
