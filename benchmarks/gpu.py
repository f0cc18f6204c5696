"""All checks and benchmarks for a GPU, in under half an hour: `make check-gpu` writes benchmarks/results/gpu.md.

First checks that everything works (the tests marked gpu, then the whole stack with models of real shapes), then
measures how fast it is. Each stage is a command with a deadline; if one fails or takes too long, the table says so, and
the next one begins. Where a single command may take only nine minutes, run it in three parts:

    python -m benchmarks.gpu --seconds 520 --only machine tests attention stack timeline compiled
    python -m benchmarks.gpu --seconds 520 --append --only work
    python -m benchmarks.gpu --seconds 520 --append --only floors Transformers
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
_TITLE = "# On a GPU\n\n`make check-gpu` writes this page.\n"
_MOST_WORKERS = 14  # each has its own CUDA context
_SHOWN_LINES = 40  # last lines that are shown of the output of a failed stage
_PEERS = ("qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b")
_ALONE = ("deepseek-v2-lite", "gpt-oss-20b")  # only measured against their floors
_QUANTIZATIONS = ("int8", "int4", "fp8")  # of the second peer
_WITHOUT_FLOORS = ("olmo-hybrid-7b", "gpt-oss-20b-mxfp4")


@dataclass(frozen=True)
class Stage:
    """A command, and how long it may take."""

    name: str
    command: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a stage."""

    name: str
    result: str
    seconds: float
    text: str  # its output

    @property
    def is_good(self) -> bool:
        """Whether the stage succeeded."""
        return self.result == "done"


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _floors(shape: str) -> Stage:
    given = f"--shape {shape} --device cuda --batches 1 2 8 32 256 --context 1024 --prefill 8192"
    return Stage(f"{shape}: steps against their floors", _module("benchmarks.floors", *given.split()), 150)


def _quantized(shape: str) -> Stage:
    given = f"--shape {shape} --device cuda --batches 1 8 32 256 --context 1024 --prefill 8192"
    command = _module("benchmarks.floors", *given.split(), "--quantization", *_QUANTIZATIONS)
    return Stage(f"{shape}: quantized steps against their floors", command, 240)


def _tests() -> Stage:
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    # pytest-benchmark, if it is installed, warns if there are several workers, and warnings are errors.
    given = f"-q -m gpu tests/gpu -n {workers} --dist worksteal -p no:cacheprovider -p no:benchmark"
    return Stage("tests", _module("pytest", *given.split()), 300)


def _memory_check() -> Stage:
    """Checks memory accesses with CUDA's own tool, if it is installed.

    Each tensor has a separate allocation, so that none begins where another one ends.
    """
    chosen = (
        "test_shapes or test_draw or test_what_scores or test_products_with_codes or (test_engine and qwen and True)"
    )
    checked = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1"]
    given = ["-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "-p", "no:benchmark", "-k", chosen]
    command = ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", *checked, *_module("pytest", *given)]
    return Stage("accesses to memory", command, 180)


def _timeline(shape: str, batches: str) -> Stage:
    given = f"--shape {shape} --batches {batches} --prefill 8192"
    return Stage(f"{shape}: timeline of steps", _module("benchmarks.timeline", *given.split()), 90)


def _compiled(shape: str) -> Stage:
    given = f"--shape {shape} --device cuda --batches 1 --context 1024"
    return Stage(f"{shape}: beside a compiled loop", _module("benchmarks.compiled_loop", *given.split()), 180)


def _of_shape(shape: str) -> list[Stage]:
    peer = ("--shape", shape, "--device", "cuda", "--streams", "1", "32", "256", "--input-len", "1024")
    return [
        _floors(shape),
        Stage(f"{shape}: beside Transformers", _module("benchmarks.continuous_batching", *peer, "--rounds", "1"), 200),
    ]


def stages() -> list[Stage]:
    """All stages in order; the last ones get whatever time is left."""
    stack = f"--shape {_PEERS[0]} --load-format dummy --requests 2 --streams 1 32 256 --input-len 1024 --output-len 256"
    return [
        Stage(
            "machine", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv"], 30
        ),
        _tests(),
        Stage("services at work", _module("benchmarks.at_work"), 330),
        *_of_shape(_PEERS[0]),
        Stage("attention of one layer", _module("benchmarks.attention", "--device", "cuda"), 60),
        Stage("the whole stack", _module("benchmarks.serving", *stack.split()), 120),
        Stage("prompts with images", _module("benchmarks.images", "--rounds", "1", "--images", "5"), 150),
        _timeline(_PEERS[0], "1 32 256"),
        _compiled(_PEERS[0]),
        *_of_shape(_PEERS[1]),
        _timeline(_PEERS[1], "1 32"),
        _compiled(_PEERS[1]),
        _quantized(_PEERS[1]),
        *map(_floors, _ALONE),
        *(_timeline(shape, "1 8 32") for shape in _WITHOUT_FLOORS),
        *_of_shape(_PEERS[2]),
        _memory_check(),
    ]


def run_stages(chosen: Sequence[Stage], most_seconds: float) -> Iterator[Outcome]:
    """Runs one stage after the other; stages for which no time is left are not started."""
    end = time.monotonic() + most_seconds
    for stage in chosen:
        seconds = min(stage.seconds, end - time.monotonic())
        outcome = _run(stage, seconds) if seconds > 0 else Outcome(stage.name, "no time was left", 0.0, "")
        print(f"{outcome.name}: {outcome.result}, {outcome.seconds:.0f} s", flush=True)
        yield outcome


def _run(stage: Stage, seconds: float) -> Outcome:
    """Runs a stage and ends everything it has started: a leftover server would hold the GPU's memory."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output, unwinding():
        try:
            process = subprocess.Popen(
                stage.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},  # so that the output of a stage that is cut short is there
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
    """Markdown: a table of all stages, then each one's printed tables, or the end of its output if it has failed."""
    lines = [
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
    parser.add_argument("--append", action="store_true", help="to what is in the output, as of other stages")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="for all stages")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="stages with one of these in their names")
    arguments = parser.parse_args()
    words = arguments.only or [""]
    chosen = [stage for stage in stages() if any(word in stage.name for word in words)]
    if not chosen:
        parser.error(f"--only {' '.join(words)}: there are {', '.join(stage.name for stage in stages())}")
    before = arguments.output.read_text(encoding="utf-8") if arguments.append and arguments.output.exists() else _TITLE
    outcomes = list[Outcome]()
    for outcome in run_stages(chosen, arguments.seconds):
        outcomes.append(outcome)
        # Written after each stage, because the process may be ended during the next one.
        arguments.output.write_text(f"{before}\n{report(outcomes)}", encoding="utf-8")
    print(report(outcomes))
    sys.exit(0 if all(outcome.is_good for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
