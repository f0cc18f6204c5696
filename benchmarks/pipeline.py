"""How busy the stages of a pipeline are: `python -m benchmarks.pipeline` prints the tables of docs/scaling.md.

Every rank says of each step when it took it up, how long it waited in it for other stages, and when it was done; all
else it was idle. So time that a rank spends on sending, and on what the kernel does to share too few processors, counts
as busy. A timeline shows some steps in the midst of the run. With --sleeps, passes take a fixed time of no processor's,
as if every stage had a device: what is idle then is what the schedule leaves idle.
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

Steps = list[list[StageTimes]]  # of each step, those of its stages


class Watched(MultiprocExecutor):
    """Keeps what ranks say of their time."""

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
    """How much of the time in which each stage had some of these steps it was busy."""
    start, end = steps[0][-1].began, steps[-1][0].ended
    found = []
    for stage in zip(*steps, strict=True):
        whole = [times for times in stage if times.ended > start and times.began < end]
        inside = [(max(times.began, start), min(times.ended, end), times.waited) for times in whole]
        found.append(sum(max(0.0, ended - began - waited) for began, ended, waited in inside) / (end - start))
    return found


def timeline(steps: Steps) -> list[str]:
    """A line for each stage: which step it has, `·` where it waits for another stage, a blank where it has none.

    Waiting is drawn before computing, which is where most of it is.
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
    """Those in which all stages are under load: neither the beginning nor the end."""
    cut = len(steps) // 5
    return steps[cut : len(steps) - cut]


def measure(model: str, stages: int, workload: Workload, rounds: int, worker: str) -> tuple[float, Steps]:
    """Tokens a second, of the median round, and the steps of the last one."""
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
