"""The states of a worker, and the function that derives its state from the facts."""

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
    # It answers and will soon take requests: worth waiting for, however long it has been away.
    coming: bool = False
    # It reports that it is loading its model.
    loading: bool = False
    # An operator holds it in this state: it takes requests again when the operator says so, and is not waited for.
    held: bool = False


class Facts(NamedTuple):
    """What is known of a worker at one moment. Created some thousand times a second in a large fleet."""

    # No source announces it any more.
    retired: bool
    # The session with it is up.
    connected: bool
    # The session was up at some time before.
    was_connected: bool
    # Its heartbeat is overdue.
    late: bool
    health: Health
    # It has been SERVING on this connection.
    was_serving: bool
    # It has reported its model on this connection.
    has_model: bool
    # It has work, and has not finished a step for too long.
    stalled: bool
    # Last problem with it; empty when there was none.
    trouble: str
    # Why it is ejected; empty when it is not.
    ejected: str = ""
    # The condition that an operator holds it in; None when not held.
    held: Condition | None = None


_LOADS = Condition(State.STARTING, "it is loading the model", coming=True, loading=True)


def assess(facts: Facts) -> Condition:
    """Derives the worker's state from the facts."""
    loads = facts.health is Health.NOT_SERVING and not facts.was_serving
    if loads and not facts.connected:
        return _LOADS
    if not facts.connected:
        state = State.UNREACHABLE if facts.was_connected else State.STARTING
        return Condition(state, facts.trouble or "no connection yet", coming=facts.health is Health.SERVING)
    if facts.late:
        return Condition(State.UNREACHABLE, f"no heartbeat for more than {LATE_SECONDS:g} s")
    if facts.stalled:
        return Condition(State.UNREACHABLE, "its engine is stuck in a step")
    if facts.retired:
        return Condition(State.DRAINING, "no longer announced; it finishes its running requests")
    if loads:
        return _LOADS
    if facts.health is Health.NOT_SERVING:
        return Condition(State.DRAINING, "its health became NOT_SERVING: it is draining or stuck")
    if facts.health is Health.UNKNOWN:
        return Condition(State.STARTING, facts.trouble or "its health is not known yet")
    if facts.held is not None:
        return facts.held
    if not facts.has_model:
        return Condition(State.STARTING, facts.trouble or "it has not reported its model yet", coming=True)
    return Condition(State.EJECTED if facts.ejected else State.READY, facts.ejected, coming=True)
