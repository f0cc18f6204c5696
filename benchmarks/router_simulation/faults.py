"""What befalls simulated engines, at random times."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

from benchmarks.router_simulation.clock import EventClock
from benchmarks.router_simulation.engine import Engine


class Kind(enum.Enum):
    """A fault."""

    KILL = "kill"  # and a new process later
    FREEZE = "freeze"
    DRAIN = "drain"  # it refuses new requests and ends when it has no more, or is killed; a new process later
    SLOW = "slow"
    FAIL_STEP = "fail step"


@dataclass(frozen=True)
class Fault:
    """One of them."""

    at: float
    kind: Kind
    engine: int
    seconds: float


def random_faults(random: Random, engines: int, count: int, seconds: float) -> list[Fault]:
    """`count` of them, spread over the first `seconds`."""
    return [
        Fault(random.uniform(0, seconds), random.choice(list(Kind)), random.randrange(engines), random.uniform(0.2, 5))
        for _ in range(count)
    ]


def inflict(fault: Fault, engine: Engine, clock: EventClock) -> None:
    """Lets it happen, now, and pass."""
    if not engine.alive:
        return
    later = clock.time() + fault.seconds
    if fault.kind is Kind.KILL:
        engine.stop()
        clock.call_at(later, engine.begin)
    elif fault.kind is Kind.FREEZE:
        engine.freeze()
        clock.call_at(later, engine.thaw)
    elif fault.kind is Kind.DRAIN:
        engine.drain()
        clock.call_at(later, _replace, engine)
    elif fault.kind is Kind.SLOW:
        engine.slowness = 10.0
        clock.call_at(later, _recover, engine)
    else:
        engine.fail_step()


def _replace(engine: Engine) -> None:
    if engine.alive and engine.draining:
        engine.stop()
        engine.begin()


def _recover(engine: Engine) -> None:
    engine.slowness = 1.0
