"""The states of a worker, and the one function that tells which one it is in."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from quire.rpc.settings import LATE_SECONDS


class State(enum.Enum):
    """See WorkerState in router.proto."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    UNREACHABLE = "unreachable"
    EJECTED = "ejected"
    PAUSED = "paused"


class Health(enum.Enum):
    """What the worker's gRPC health service says."""

    UNKNOWN = "unknown"
    SERVING = "serving"
    NOT_SERVING = "not serving"


@dataclass(frozen=True)
class Condition:
    """State of a worker, and why it is not READY."""

    state: State
    reason: str = ""
    # It answers, and is on its way to take requests: worth waiting for, however long it has been away.
    coming: bool = False
    # It says that it loads its model.
    loading: bool = False
    # An operator wants it so: it takes requests again when he wants that, and is not waited for.
    held: bool = False


class Facts(NamedTuple):
    """What is known of a worker at one moment. Made some thousand times a second in a large fleet."""

    # No source announces it any more.
    retired: bool
    # The session with it is up.
    connected: bool
    # It was up once before.
    was_connected: bool
    # Its heartbeat is overdue.
    late: bool
    health: Health
    # It was SERVING once on this connection.
    was_serving: bool
    # It has told its model on this connection.
    has_model: bool
    # It has work, and has not ended a step for too long.
    stalled: bool
    # Last trouble met with it; empty when there was none.
    trouble: str
    # Why it gets no new requests for a while; empty when it does.
    ejected: str = ""
    # What an operator has made of it.
    held: Condition | None = None


_LOADS = Condition(State.STARTING, "it is loading the model", coming=True, loading=True)


def assess(facts: Facts) -> Condition:
    """The state that the facts amount to."""
    loads = facts.health is Health.NOT_SERVING and not facts.was_serving
    if loads and not facts.connected:
        return _LOADS
    if not facts.connected:
        state = State.UNREACHABLE if facts.was_connected else State.STARTING
        return Condition(state, facts.trouble or "no connection yet", coming=facts.health is Health.SERVING)
    if facts.late:
        return Condition(State.UNREACHABLE, f"no heartbeat for more than {LATE_SECONDS:g} s")
    if facts.stalled:
        return Condition(State.UNREACHABLE, "its engine does not end the step it is in")
    if facts.retired:
        return Condition(State.DRAINING, "no longer announced; its running requests finish")
    if loads:
        return _LOADS
    if facts.health is Health.NOT_SERVING:
        return Condition(State.DRAINING, "its health became NOT_SERVING: it drains or is stuck")
    if facts.health is Health.UNKNOWN:
        return Condition(State.STARTING, facts.trouble or "its health is not known yet")
    if facts.held is not None:
        return facts.held
    if not facts.has_model:
        return Condition(State.STARTING, facts.trouble or "it has not told its model yet", coming=True)
    return Condition(State.EJECTED if facts.ejected else State.READY, facts.ejected, coming=True)
