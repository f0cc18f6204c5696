"""Checks that the whole stack works on a device, using OpenAI's own client: `python -m benchmarks.at_work`.

Starts `quire serve` with models of real shapes and random weights, one server after the other, and tries each one:
chats, prefix cache hits, many streams, canceled ones, a KV cache that is too small, killed workers, and shutdown. Every
wait has a deadline. Failures are reported in the table, the remaining trials still run, and the exit status is 1.

Without a GPU: `--device cpu --shapes tiny-llama`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from benchmarks.at_work_chat import log_probabilities, prefix_hit, seeds, slept, two_choices, whole_and_streamed
from benchmarks.at_work_load import (
    both_workers,
    cancelled_streams,
    host_tier,
    killed_worker,
    many_streams,
    preempted_streams,
    restarted_worker,
    stopped,
)
from benchmarks.at_work_stack import ON_CPU, ON_GPU, Scale, Stack, Unexpected
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build_without_weights
from benchmarks.servers import Server, answers, quire, running
from quire.serve.ports import free_ports

Trial: TypeAlias = Callable[[Stack], Awaitable[str]]

_MOST_SECONDS = 300.0  # for all runs, except the shutdown of the last one
_START_SECONDS = 120.0
_TRIAL_SECONDS = 100.0
_LOG_LINES = 20
# All trials run with the first shape.
GPU_SHAPES = ("qwen3-0.6b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2-lite")
_CHAT: tuple[Trial, ...] = (whole_and_streamed, two_choices, log_probabilities, seeds)
_LOAD: tuple[Trial, ...] = (many_streams, cancelled_streams)
_FEW_SEQUENCES = "--max-num-seqs 32"  # fewer CUDA graphs to record
_OFFLOADED = "--quantization fp8 --cpu-offload-gb 0.3"
# Extra options for shapes other than the first.
_OPTIONS = {"llama-3.1-8b": "--quantization int8"}


@dataclass(frozen=True)
class Run:
    """A server, and the trials that run against it; it is stopped at the end."""

    shape: str
    options: str
    trials: Sequence[Trial]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial."""

    run: Run
    tried: str
    is_good: bool
    result: str
    seconds: float
    log: Sequence[str] = ()  # of the server, if the trial failed

    def row(self) -> str:
        """The outcome's row in the table."""
        result = " ".join(self.result.split()).replace("|", "\\|")
        said = f"{'' if self.is_good else 'FAILED: '}{result}"
        return f"| {self.run.shape} | {self.run.options} | {self.tried} | {said} | {self.seconds:.1f} |"


def runs(shapes: Sequence[str], scale: Scale) -> list[Run]:
    """All runs; those of the first shape come first."""
    first, *others = shapes
    few = f"--num-gpu-blocks-override {scale.few_blocks} --max-model-len {scale.max_model_len}"
    return [
        Run(first, "--enable-prompt-tokens-details", (*_CHAT, prefix_hit, *_LOAD)),
        Run(
            first, f"{few} --swap-space 1 --kv-cache-dtype fp8",
            (whole_and_streamed, preempted_streams, host_tier, cancelled_streams),
        ),
        # Batch-invariant, so the streams of a worker that dies must have exactly the tokens that they would have had.
        Run(
            first, "--engines 2 --gpu-memory-utilization 0.3 --batch-invariant",
            (*_CHAT, both_workers, killed_worker, restarted_worker),
        ),
        Run(first, f"--enable-sleep-mode --server-dev-mode {_FEW_SEQUENCES}", (whole_and_streamed, slept)),
        *(Run(first, f"{form} {_FEW_SEQUENCES}", _CHAT) for form in ("--quantization int4", _OFFLOADED)),
        *(
            Run(
                shape, f"{_OPTIONS.get(shape, '')} --enable-prompt-tokens-details {_FEW_SEQUENCES}".strip(),
                (*_CHAT, prefix_hit),
            )
            for shape in others
        ),
    ]  # fmt: skip


def tried(run: Run, device: str, scale: Scale, end: float) -> Iterator[Outcome]:
    """Runs the trials of a run and yields their outcomes.

    Args:
        end: when the time for all runs is over, by time.monotonic(). A run is cut short then, except for the shutdown
            of its server.
    """
    begin = time.monotonic()
    if begin >= end:
        yield Outcome(run, "start", False, "no time was left", 0.0)
        return
    with tempfile.TemporaryDirectory(prefix="quire-at-work-") as name:
        folder = Path(name)
        log, services_log = folder / "printed.log", folder / "services.log"
        server, seconds = _server(run, device, folder), min(_START_SECONDS, end - begin)
        is_invariant = device == "cpu" or "--batch-invariant" in run.options
        try:
            with running(server, log, lambda port: _is_ready(port, log), seconds) as started:
                yield Outcome(run, "start", True, "answers", started.start_seconds)
                stack = partial(Stack, started, server.port, log, scale, is_invariant)
                for trial in run.trials:
                    outcome = asyncio.run(_outcome(run, trial, stack, end - time.monotonic()))
                    yield outcome if outcome.is_good else replace(outcome, log=_tail(log) + _tail(services_log))
                # Regardless of how much time is left.
                yield asyncio.run(_outcome(run, stopped, stack, _TRIAL_SECONDS))
        except RuntimeError as error:  # it did not start
            last = str(error).strip().splitlines()[-1]
            yield Outcome(run, "start", False, last, time.monotonic() - begin, log=_tail(log) + _tail(services_log))


def _server(run: Run, device: str, folder: Path) -> Server:
    model, [port] = folder / run.shape, free_ports(1)
    build_without_weights(run.shape, model)
    given = ["--device", device, "--load-format", "dummy", "--log-file", str(folder / "services.log")]
    server = quire(run.shape, model, port, [*given, *run.options.split()])
    return replace(server, environment={"PYTHONUNBUFFERED": "1"})


def _is_ready(port: int, log: Path) -> bool:
    """Whether the server has printed the addresses of its services, and answers requests."""
    return " is ready after " in log.read_text(errors="replace") and answers(port)


async def _outcome(run: Run, trial: Trial, stack: Callable[[], Stack], seconds: float) -> Outcome:
    begin, is_good, limit = time.monotonic(), False, asyncio.timeout(min(seconds, _TRIAL_SECONDS))
    try:
        async with limit, stack() as entered:
            result, is_good = await trial(entered), True
    except Unexpected as error:
        result = str(error)
    except Exception as error:  # whatever it is, the remaining trials run
        result = f"{type(error).__name__}: {error}"
    result = "not done in time" if limit.expired() else result
    return Outcome(run, trial.__name__.replace("_", " "), is_good, result, time.monotonic() - begin)


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []


def measure(chosen: Sequence[Run], device: str, seconds: float = _MOST_SECONDS) -> list[Outcome]:
    """Prints the table row by row, then the logs of servers with failed trials."""
    scale, end, outcomes = scale_of(device), time.monotonic() + seconds, list[Outcome]()
    print("| shape | with | what was tried | result | s |\n|---|---|---|---|---|")
    for run in chosen:
        for outcome in tried(run, device, scale, end):
            outcomes.append(outcome)
            print(outcome.row(), flush=True)
    for outcome in outcomes:
        if outcome.log:
            print(f"\n{outcome.run.shape} {outcome.run.options}, {outcome.tried}:", *outcome.log, sep="\n")
    return outcomes


def scale_of(device: str) -> Scale:
    """The scale of the trials for a device."""
    return ON_CPU if device == "cpu" else ON_GPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=GPU_SHAPES, help="the first in all ways")
    parser.add_argument("--seconds", type=float, default=_MOST_SECONDS, help="for all runs")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="runs with one of these in their shape or options")
    arguments = parser.parse_args()
    every = runs(arguments.shapes, scale_of(arguments.device))
    words = arguments.only or [""]
    chosen = [run for run in every if any(word in f"{run.shape} {run.options}" for word in words)]
    if not chosen:
        parser.error(f"--only {' '.join(words)}: there are {', '.join(run.options for run in every)}")
    print(heading())
    outcomes = measure(chosen, arguments.device, arguments.seconds)
    sys.exit(0 if all(outcome.is_good for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
