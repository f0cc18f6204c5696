"""All that a GPU has to show, in under half an hour: `make check-gpu`, which writes benchmarks/results/gpu.md.

First that it works (the tests that are marked gpu), then how fast it is. Each stage is a command with a deadline: one
that fails or takes too long is told so in the table, and the next one begins.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import heading
from benchmarks.stopping import stop, unwinding

MOST_SECONDS = 1680  # of all stages
_SHOWN_LINES = 40  # of what one prints that has failed
_PEERS = ("qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b")
_ALONE = ("deepseek-v2-lite", "gpt-oss-20b")  # steps against their floors are what counts of these


@dataclass(frozen=True)
class Stage:
    """A command, and how long it may take."""

    name: str
    command: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What became of a stage."""

    name: str
    result: str
    seconds: float
    text: str  # that it printed

    @property
    def is_good(self) -> bool:
        """Whether it did what it was to do."""
        return self.result == "done"


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _floors(shape: str) -> Stage:
    given = f"--shape {shape} --device cuda --batches 1 32 256 --context 1024 --prefill 8192"
    return Stage(f"{shape}: steps against their floors", _module("benchmarks.floors", *given.split()), 150)


def _of_shape(shape: str) -> list[Stage]:
    peer = ("--shape", shape, "--device", "cuda", "--streams", "1", "32", "256", "--input-len", "1024")
    return [
        _floors(shape),
        Stage(f"{shape}: beside Transformers", _module("benchmarks.continuous_batching", *peer, "--rounds", "1"), 200),
    ]


def stages() -> list[Stage]:
    """In this order; what is left of the time is the last ones'."""
    return [
        Stage(
            "machine", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv"], 30
        ),
        Stage("tests", _module("pytest", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider"), 600),
        *_of_shape(_PEERS[0]),
        Stage("attention of one layer", _module("benchmarks.attention", "--device", "cuda"), 60),
        Stage("the whole stack", _module("benchmarks.serving", "--shape", _PEERS[0], "--requests", "2"), 150),
        *_of_shape(_PEERS[1]),
        *map(_floors, _ALONE),
        *_of_shape(_PEERS[2]),
    ]


def run_stages(chosen: Sequence[Stage], most_seconds: float) -> Iterator[Outcome]:
    """One after the other. A stage that there is no time left for is not begun."""
    end = time.monotonic() + most_seconds
    for stage in chosen:
        seconds = min(stage.seconds, end - time.monotonic())
        outcome = _run(stage, seconds) if seconds > 0 else Outcome(stage.name, "no time was left", 0.0, "")
        print(f"{outcome.name}: {outcome.result}, {outcome.seconds:.0f} s", flush=True)
        yield outcome


def _run(stage: Stage, seconds: float) -> Outcome:
    """What it starts ends with it: a server that is left would have the GPU's memory."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output, unwinding():
        try:
            process = subprocess.Popen(
                stage.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},  # so that what a late one has printed is there
            )  # fmt: skip
        except OSError as error:
            return Outcome(stage.name, f"cannot be started: {error}", 0.0, "")
        try:
            status = process.wait(seconds)
            result = "done" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            result = f"not done after {seconds:.0f} s"
        finally:
            stop(process)
        output.seek(0)
        return Outcome(stage.name, result, time.monotonic() - begin, output.read())


def report(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a table of all, then what each one printed: its tables, and the end of it all where it has failed."""
    lines = [
        "# On a GPU\n",
        "`make check-gpu` writes this page.\n",
        heading(),
        "| stage | result | s |",
        "|---|---|---|",
    ]
    lines += [f"| {each.name} | {each.result} | {each.seconds:.0f} |" for each in outcomes]
    for each in outcomes:
        if each.text.strip():
            lines += [f"\n## {each.name}\n", *_shown(each)]
    return "\n".join(lines) + "\n"


def _shown(outcome: Outcome) -> list[str]:
    printed = outcome.text.strip().splitlines()
    tables = [line for line in printed if line.startswith(("|", "`"))]
    if outcome.is_good and tables:
        return tables
    return [*tables, "", "```", *printed[-_SHOWN_LINES:], "```"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/gpu.md"))
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="for all stages")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="stages with one of these in their names")
    arguments = parser.parse_args()
    words = arguments.only or [""]
    chosen = [stage for stage in stages() if any(word in stage.name for word in words)]
    if not chosen:
        parser.error(f"--only {' '.join(words)}: there are {', '.join(stage.name for stage in stages())}")
    outcomes = list[Outcome]()
    for outcome in run_stages(chosen, arguments.seconds):
        outcomes.append(outcome)
        arguments.output.write_text(report(outcomes), encoding="utf-8")  # what comes next may be the last that it does
    print(report(outcomes))
    sys.exit(0 if all(outcome.is_good for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
