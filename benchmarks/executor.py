"""How long a step's plan takes to reach the ranks of the `mp` executor.

`python -m benchmarks.executor` prints the table of benchmarks/results/executor.md. Times start before the plan is
encoded, and end when it is written for all ranks, when the last rank has received it and knows its length, and when the
last rank has decoded it into Python objects. Ranks note the time and report it only when asked, so that reporting takes
no CPU time from ranks that have not read the plan yet.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from engine_svc.executor.child import begin_child
from engine_svc.executor.messages import Step
from engine_svc.executor.multiproc import RankProcesses
from engine_svc.plan import NewSequence, SamplingPlan, ScheduledSequence, StepPlan

_SECONDS = 30.0


class Announced(msgspec.Struct, tag="Step"):
    """A step whose plan is skipped over, not decoded."""


class Tell(msgspec.Struct, tag=True):
    """Asks for what was noted of the last plan, and says whether plans are decoded from now on."""

    makes: bool


class Noted(msgspec.Struct):
    """What a rank has noted, in nanoseconds."""

    at: int = 0
    processor: int = 0  # CPU time that it has spent since the previous plan


_PAUSE_SECONDS = 0.002  # between steps, so that ranks fall asleep
_BLOCK = 16


def decoding(sequences: int) -> StepPlan:
    """A plan in which all sequences decode; one in sixteen gets a new block."""
    scheduled = [
        ScheduledSequence(slot, 1000 + slot, 1, 1, [[5000 + slot]] if slot % _BLOCK == 0 else [])
        for slot in range(sequences)
    ]
    return StepPlan(12345, [], scheduled)


def prompt(tokens: int) -> StepPlan:
    """A plan in which one sequence starts."""
    new = NewSequence(0, list(range(1000, 1000 + tokens)), tokens, 0, [list(range(tokens // _BLOCK))], SamplingPlan())
    return StepPlan(12345, [new], [ScheduledSequence(0, 0, tokens, 1, [])])


PLANS = {
    "1 sequence decodes": decoding(1),
    "32 sequences decode": decoding(32),
    "256 sequences decode": decoding(256),
    "a prompt of 8,192": prompt(8192),
    "a prompt of 131,072": prompt(131072),
}


class Group:
    """Ranks that note when they have read a plan."""

    def __init__(self, ranks: int) -> None:
        self._processes = RankProcesses(ranks, "benchmarks.executor")

    def microseconds(self, plan: StepPlan, makes: bool) -> tuple[float, float, float]:
        """Time until a plan is written, time until the last rank has read it, and the CPU time a rank spends on it."""
        self._tell(makes)
        time.sleep(_PAUSE_SECONDS)
        began = time.monotonic_ns()
        self._processes.broadcast.to_all(Step(plan), _SECONDS)
        written = time.monotonic_ns()
        time.sleep(_PAUSE_SECONDS)
        noted = self._tell(makes)
        spent = statistics.median(each.processor for each in noted)
        return (written - began) / 1000, (max(each.at for each in noted) - began) / 1000, spent / 1000

    def _tell(self, makes: bool) -> list[Noted]:
        self._processes.broadcast.to_all(Tell(makes), _SECONDS)  # type: ignore[arg-type]  # ours alone
        return [channel.receive(Noted, _SECONDS) for channel in self._processes.channels]

    def close(self) -> None:
        self._processes.broadcast.close()
        self._processes.wait()


def run(argument: str) -> None:
    """Runs in a rank's process."""
    channel, inbox = begin_child(argument)
    noted = Noted()
    kind: Any = Announced | Tell
    while True:
        spent = time.thread_time_ns()
        try:
            found = inbox.receive_as(kind)
        except EOFError:
            return
        at = time.monotonic_ns()
        if not isinstance(found, Tell):
            noted = Noted(at, time.thread_time_ns() - spent)
            continue
        kind = (Step if found.makes else Announced) | Tell
        channel.send(noted)


def measure(ranks: int, rounds: int) -> Iterable[str]:
    group = Group(ranks)
    for name, plan in PLANS.items():
        walked, made = [], []
        for _ in range(rounds):
            walked.append(group.microseconds(plan, makes=False))
            made.append(group.microseconds(plan, makes=True))
        written, read, spent = zip(*walked, strict=True)
        objects = [each[1] for each in made]
        size = len(msgspec.msgpack.encode(Step(plan)))
        cells = [*map(statistics.median, (written, read, objects, spent)), statistics.quantiles(read, n=10)[0]]
        yield f"| {name} | {size:,} | {ranks} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |"
    group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    print("| plan | bytes | ranks | written, µs | read | and made | a rank's own time | best tenth: read |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks in options.ranks:
        for line in measure(ranks, options.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
