"""The program that torchrun starts in a test: like engine_svc.main, but rank 0 answers prompts instead of serving."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from engine_svc.executor.base import Executor, create_executor
from engine_svc.executor.external import obey, read_launch
from engine_svc.plan import CacheSize, NewSequence, ScheduledSequence, StepPlan
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.plans import sampling_plan

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]]
COUNT = 4


def main(folder: str) -> None:
    options = engine_options(
        dtype="float32", max_num_seqs=2, block_size=16, use_tqdm_on_load=False, cpu_threads=1, tensor_parallel_size=2,
        distributed_executor_backend="external_launcher", rank_secret="of the test",
    )  # fmt: skip
    if (launch := read_launch(options.parallel)).rank:
        obey(launch)
        return
    executor = create_executor(options.parallel)
    executor.load(ModelOptions(model=folder), options)
    executor.allocate(CacheSize(8))
    say(*siblings())
    for prompt in PROMPTS:
        say(*generate(executor, prompt))
    while True:
        executor.check_alive()
        time.sleep(0.01)


def siblings() -> list[int]:
    """All processes that torchrun has started: this one, rank 1, and the child that computes for rank 0."""
    return [os.getpid(), *(pid for pid in children(os.getppid()) if pid != os.getpid()), *children(os.getpid())]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def generate(executor: Executor, prompt: list[int]) -> list[int]:
    greedy = sampling_plan(temperature=0.0)
    plan = StepPlan(1, [NewSequence(0, prompt, len(prompt), 0, [[0]], greedy)], [part(0, len(prompt))])
    found: list[int] = []
    for step in range(COUNT):
        executor.submit(plan)
        found += executor.collect().sampled_token_ids[0]
        plan = StepPlan(step + 2, [], [part(len(prompt) + step, 1)])
    return found


def part(computed: int, count: int) -> ScheduledSequence:
    return ScheduledSequence(0, computed, count, 1, [])


def say(*numbers: int) -> None:
    print(*numbers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
