"""A simulated fleet of a thousand workers with group failures: what is lost, and how long placement takes.

    python -m benchmarks.scaling_fleet

A worker is a group of GPUs that fails as a whole. Workers that step together, like the data-parallel ranks of a model
with experts, also fail together. Router and fleet are those of benchmarks.router_simulation: the router's code is the
real one, and the time of its decisions is measured.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random

from benchmarks.router_simulation.faults import Fault, Kind
from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.report import measure, seconds_of_work
from benchmarks.router_simulation.simulation import Scenario, Simulation
from benchmarks.router_simulation.traces import make_trace
from quire.options.router import RouterOptions

_RESTART_SECONDS = 60.0  # until a group that failed serves again


@dataclass(frozen=True)
class Fleet:
    """What to simulate: `failures` groups of `group` workers each die at random times, and are restarted."""

    workers: int
    requests: int
    load: float
    group: int
    failures: int
    routers: int = 1
    seed: int = 0


def faults(fleet: Fleet, seconds: float) -> list[Fault]:
    """Faults that hit all workers of a group at the same moment, during the time in which requests arrive."""
    random = Random(fleet.seed)
    groups = random.sample(range(fleet.workers // fleet.group), fleet.failures)
    times = [random.uniform(0.1, 0.9) * seconds for _ in groups]
    return [
        Fault(at, Kind.KILL, group * fleet.group + member, _RESTART_SECONDS)
        for at, group in zip(times, groups, strict=True)
        for member in range(fleet.group)
    ]


def simulate(fleet: Fleet) -> str:
    """Runs a simulation and returns its row of the table."""
    spec = EngineSpec()
    conversations = make_trace("chat", fleet.requests, fleet.seed, "poisson")
    seconds = seconds_of_work(conversations, spec) / (fleet.workers * fleet.load)
    scenario = Scenario(
        conversations, seconds, [spec] * fleet.workers, RouterOptions(max_inflight_requests=10**9), fleet.seed,
        fleet.routers, faults(fleet, seconds),
    )  # fmt: skip
    simulation = Simulation(scenario)
    simulation.run()
    outcomes = simulation.history.outcomes.values()
    complete = sum(
        simulation.history.outcomes[request.number].token_ids == request.tokens(0, request.output_tokens)
        for request in simulation.requests
    )
    figures = measure(simulation)
    moved = sum(len(outcome.workers) > 1 for outcome in outcomes)
    cells = (
        f"{fleet.routers}", f"{fleet.failures} x {fleet.group}", f"{len(outcomes):,}", f"{moved:,}",
        f"{len(outcomes) - complete}", f"{figures.errors}", f"{figures.hit_rate:.1%}", f"{figures.max_share:.2f}",
        f"{figures.ttft_p50 * 1e3:.0f}", f"{figures.ttft_p99 * 1e3:.0f}",
        f"{decision_microseconds(simulation, 0.5):.0f}", f"{decision_microseconds(simulation, 0.99):.0f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def decision_microseconds(simulation: Simulation, share: float) -> float:
    """Quantile, given by `share`, of the times of the last decisions that the routers remember."""
    times = sorted(decision.seconds for replica in simulation.replicas for decision in replica.table.decisions)
    return times[min(len(times) - 1, int(len(times) * share))] * 1e6


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 3], help="that share the workers")
    chosen = parser.parse_args()
    kinds: Sequence[tuple[int, int]] = ((1, 0), (1, 20), (8, 20), (64, 2))
    fleets = [
        Fleet(chosen.workers, chosen.requests, chosen.load, group, failures, routers)
        for routers in chosen.routers for group, failures in kinds
    ]  # fmt: skip
    print(
        "| routers | failures x workers | requests | moved | incomplete | errors | hit rate | N x max share "
        "| TTFT p50 ms | p99 ms | decision p50 µs | p99 µs |\n" + "|---" * 12 + "|"
    )
    with ProcessPoolExecutor(2, initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        for row in pool.map(simulate, fleets):
            print(row, flush=True)


if __name__ == "__main__":
    main()
