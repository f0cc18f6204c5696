"""How busy pipeline stages are: `python -m benchmarks.pipeline` prints the tables of docs/scaling.md.

For each step, every rank reports when it began, how long it waited for other stages, and when it was done; the rest of
the time it was idle. So the time that a rank spends sending, or waiting for one of too few processors, counts as busy.
A timeline shows some steps in the middle of the run. With --sleeps, passes take a fixed time without using a processor,
as if every stage had its own device; idle time is then what the schedule leaves idle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine_alone import EngineAlone
from benchmarks.load import Workload
from benchmarks.models import SHAPES, build_config
from engine_svc.executor.multiproc import MultiprocExecutor
from engine_svc.plan import StageTimes, StepResult

_COLUMNS = 100
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"

Steps = list[list[StageTimes]]  # for each step, the times of its stages


class Watched(MultiprocExecutor):
    """An executor that keeps the times that ranks report."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Steps = []

    def collect(self) -> StepResult:
        """See Executor.collect."""
        result = super().collect()
        if result.stages:
            self.steps.append(result.stages)
        return result


def shares(steps: Steps) -> list[float]:
    """Each stage's busy share of the time in which these steps ran."""
    start, end = steps[0][-1].began, steps[-1][0].ended
    found = []
    for stage in zip(*steps, strict=True):
        whole = [times for times in stage if times.ended > start and times.began < end]
        inside = [(max(times.began, start), min(times.ended, end), times.waited) for times in whole]
        found.append(sum(max(0.0, ended - began - waited) for began, ended, waited in inside) / (end - start))
    return found


def timeline(steps: Steps) -> list[str]:
    """A line for each stage: a letter for the step it computes, `·` while it waits for another stage, blank when idle.

    Waiting is drawn before computing, where most of it happens.
    """
    start, end = steps[0][0].began, steps[-1][-1].ended

    def column(moment: float) -> int:
        return min(_COLUMNS - 1, max(0, int((moment - start) / (end - start) * _COLUMNS)))

    lines = []
    for stage in zip(*steps, strict=True):
        line = [" "] * _COLUMNS
        for number, times in enumerate(stage):
            first, computing, last = column(times.began), column(times.began + times.waited), column(times.ended)
            line[first:computing] = "·" * (computing - first)
            line[computing : last + 1] = _LETTERS[number % len(_LETTERS)] * (last + 1 - computing)
        lines.append("".join(line))
    return lines


def midst(steps: Steps) -> Steps:
    """The steps in the middle, without the beginning and the end, so that all stages are under load."""
    cut = len(steps) // 5
    return steps[cut : len(steps) - cut]


def measure(model: str, stages: int, workload: Workload, rounds: int, worker: str) -> tuple[float, Steps]:
    """Tokens per second of the median round, and the steps of the last round."""
    executor, rates = Watched(), []
    with EngineAlone(
        model, executor if stages > 1 else None, load_format="dummy", pipeline_parallel_size=stages, cpu_threads=1,
        max_num_seqs=max(8, workload.streams), distributed_executor_backend="mp", worker_cls=worker,
    ) as engine:  # fmt: skip
        engine.run(workload)
        for _ in range(rounds):
            executor.steps.clear()
            rates.append(engine.run(workload).tokens_per_second)
    return statistics.median(rates), executor.steps


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints rates, busy shares and timelines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="small-mixtral")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-length", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleeps", action="store_true")
    given = parser.parse_args(arguments)
    worker = "benchmarks.slow_runner.SlowRunner" if given.sleeps else "auto"
    workload = Workload(given.streams, 2, 16, given.output_length, SHAPES[given.shape]["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        build_config(given.shape, Path(folder))
        print("| stages | tokens/s | busy, of each stage |\n|---|---|---|")
        drawn = []
        for stages in given.stages:
            rate, steps = measure(folder, stages, workload, given.rounds, worker)
            busy = ", ".join(f"{share:.0%}" for share in shares(midst(steps))) if steps else ""
            print(f"| {stages} | {rate:.1f} | {busy} |")
            sys.stdout.flush()
            drawn += [f"\n{stages} stages:"] * bool(steps) + (timeline(midst(steps)[: 4 * stages]) if steps else [])
    print("\n".join(drawn))


if __name__ == "__main__":
    main()
