"""How long a step's plan is on its way to the ranks of `mp`: by sockets alone, and as it goes.

`python -m benchmarks.executor` prints the table of benchmarks/results/executor.md. Times are from before the plan is
encoded to when the last rank has it before it and knows how long it is; making Python's objects of it comes on top, the
same either way, and is a column of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from engine_svc.executor.child import begin_child
from engine_svc.executor.messages import Step
from engine_svc.executor.multiproc import RankProcesses
from engine_svc.plan import NewSequence, SamplingPlan, ScheduledSequence, StepPlan

_SECONDS = 30.0


class Announced(msgspec.Struct, tag="Step"):
    """A step whose plan is walked over, and not made."""


_PAUSE_SECONDS = 0.002  # between steps, in which ranks fall asleep
_BLOCK = 16


def decoding(sequences: int) -> StepPlan:
    """All of them decode; one in sixteen begins a block."""
    scheduled = [
        ScheduledSequence(slot, 1000 + slot, 1, 1, [[5000 + slot]] if slot % _BLOCK == 0 else [])
        for slot in range(sequences)
    ]
    return StepPlan(12345, [], scheduled)


def prompt(tokens: int) -> StepPlan:
    """One sequence begins."""
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
    """Ranks that tell when they have read a plan."""

    def __init__(self, ranks: int, shares_memory: bool) -> None:
        self._processes = RankProcesses(ranks, "benchmarks.executor", shares_memory=shares_memory)

    def microseconds(self, plan: StepPlan) -> float:
        """From before it is encoded to when the last rank has read it."""
        time.sleep(_PAUSE_SECONDS)
        began = time.monotonic_ns()
        self._processes.broadcast.to_all(Step(plan), _SECONDS)
        read: list[int] = [channel.receive(int, _SECONDS) for channel in self._processes.channels]
        return (max(read) - began) / 1000

    def close(self) -> None:
        self._processes.broadcast.close()
        self._processes.wait()


def serve(argument: str) -> None:
    """As a rank."""
    channel, inbox = begin_child(argument)
    while True:
        try:
            inbox.receive_as(Announced)
        except EOFError:
            return
        channel.send(time.monotonic_ns())


def measure(ranks: int, rounds: int) -> Iterable[str]:
    groups = [Group(ranks, shares_memory) for shares_memory in (False, True)]
    for name, plan in PLANS.items():
        times: Sequence[list[float]] = ([], [])
        for _ in range(rounds):
            for group, found in zip(groups, times, strict=True):
                found.append(group.microseconds(plan))
        sockets, memory = map(statistics.median, times)
        quick = [statistics.quantiles(found, n=10)[0] for found in times]
        size = len(msgspec.msgpack.encode(Step(plan)))
        yield (
            f"| {name} | {size:,} | {ranks} | {sockets:.0f} | {memory:.0f} | {memory / sockets:.2f} "
            f"| {quick[0]:.0f} | {quick[1]:.0f} |"
        )
    for group in groups:
        group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    print("| plan | bytes | ranks | sockets, µs | shared memory, µs | ratio | best tenth: sockets | shared memory |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks in options.ranks:
        for line in measure(ranks, options.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        serve(sys.argv[1])
    else:
        main()
