"""Compares routing policies on simulated engines: `make bench-router-simulation`.

Prints a table for each trace; with --curves, draws hit rate and TTFT over load instead. With --recording, the trace is
what a router has recorded (`--record-requests`), in as much less or more time as --load says.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.router_simulation.chart import Panel, draw
from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.recorded import read_recording
from benchmarks.router_simulation.report import Figures, measure, seconds_of_work
from benchmarks.router_simulation.simulation import Scenario, Simulation
from benchmarks.router_simulation.traces import ARRIVALS, TRACES, make_trace
from quire.options.router import RouterOptions
from router.placement.policies.registry import POLICIES

_LOADS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
_HEAD = (
    "| policy | hit rate | of the oracle's | tokens max/mean | N x max share | TTFT p50 ms | p99 ms | within SLO "
    "| goodput /s | moved | errors | history |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Run:
    """What to simulate."""

    trace: str  # of TRACES, or the path of a recording
    policy: str
    arrivals: str
    load: float
    workers: int
    routers: int
    requests: int
    seed: int


def simulate(run: Run) -> tuple[Figures, str]:
    """Its figures, and the digest of its history."""
    spec = EngineSpec()
    if run.trace in TRACES:
        conversations = make_trace(run.trace, run.requests, run.seed, run.arrivals)
    else:
        conversations = read_recording(Path(run.trace), run.requests)
    seconds = seconds_of_work(conversations, spec) / (run.workers * run.load)
    # Everybody waits: a refused request would flatter the others' times.
    options = RouterOptions(
        routing_policy=run.policy, max_inflight_requests=10**9, max_queued_requests=10**9, max_queued_tokens=10**12,
        max_queue_seconds=1e6,
    )  # fmt: skip
    scenario = Scenario(conversations, seconds, [spec] * run.workers, options, run.seed, run.routers)
    simulation = Simulation(scenario)
    simulation.run()
    return measure(simulation), simulation.history.digest


def row(policy: str, figures: Figures, digest: str) -> str:
    """Of the table."""
    return (
        f"| {policy} | {figures.hit_rate:.1%} | {figures.of_oracle:.1%} | {figures.max_over_mean_tokens:.2f} "
        f"| {figures.max_share:.2f} | {figures.ttft_p50 * 1e3:.0f} | {figures.ttft_p99 * 1e3:.0f} "
        f"| {figures.within:.1%} | {figures.goodput:.1f} | {figures.migrations} | {figures.errors} | {digest} |"
    )


def print_tables(runs: Sequence[Run], results: Iterable[tuple[Figures, str]]) -> None:
    """One for each trace."""
    trace = ""
    for run, (figures, digest) in zip(runs, results, strict=True):
        if run.trace != trace:
            trace = run.trace
            described = TRACES[trace].__doc__ if trace in TRACES else "What a router has recorded."
            print(f"\n### {trace}\n\n{described}")
            most = "" if trace in TRACES else "at most "
            print(f"{run.arrivals.capitalize()} arrivals, {most}{run.requests:,} requests,", end=" ")
            print(f"{run.workers:,} workers,", end=" ")
            print(
                f"{run.routers} routers, load {run.load:g}, seed {run.seed}. The oracle: {figures.oracle_hit_rate:.1%}"
            )
            print(f"\n{_HEAD}")
        print(row(run.policy, figures, digest), flush=True)


def draw_curves(runs: Sequence[Run], results: Iterable[tuple[Figures, str]]) -> str:
    """Hit rate and TTFT p99 over load."""
    hits: dict[str, list[tuple[float, float]]] = {}
    waits: dict[str, list[tuple[float, float]]] = {}
    for run, (figures, _) in zip(runs, results, strict=True):
        hits.setdefault(run.policy, []).append((run.load, figures.hit_rate))
        waits.setdefault(run.policy, []).append((run.load, figures.ttft_p99))
    return draw([Panel("load", "hit rate", hits), Panel("load", "TTFT p99 in seconds", waits, logarithmic=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", nargs="+", choices=TRACES, default=list(TRACES))
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--recording", metavar="FILE", help="of a router, to be replayed instead of traces")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--routers", type=int, default=1, help="that share the workers, each with its own index")
    parser.add_argument(
        "--load", type=float, default=0.8, help="1 is what the workers could do with all hits there are"
    )
    parser.add_argument("--requests", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curves", type=Path, metavar="OUT.svg", help="of the first trace, over load")
    chosen = parser.parse_args()
    given, arrivals = ([chosen.recording], "recorded") if chosen.recording else (chosen.trace, chosen.arrivals)
    traces, loads = (given[:1], _LOADS) if chosen.curves else (given, (chosen.load,))
    runs = [
        Run(trace, policy, arrivals, load, chosen.workers, chosen.routers, chosen.requests, chosen.seed)
        for trace in traces for load in loads for policy in chosen.policy
    ]  # fmt: skip
    # Thousands of requests warn of nothing new.
    with ProcessPoolExecutor(initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        results = pool.map(simulate, runs)
        if chosen.curves:
            chosen.curves.write_text(draw_curves(runs, results), encoding="utf-8")
        else:
            print_tables(runs, results)


if __name__ == "__main__":
    main()
