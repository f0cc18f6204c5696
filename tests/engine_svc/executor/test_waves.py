"""Ranks that get commands at different times run the same passes, and none while there is nothing to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine_svc.executor.messages import Command
from engine_svc.executor.waves import LockstepCommands
from tests.support.engine_process import free_port
from tests.support.forked_ranks import run_forks

CODE = """
import json, os, queue, random, sys, threading, time
from collections import deque
import torch
from engine_svc.executor.messages import Step
from engine_svc.executor.waves import LockstepCommands
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import StepPlan

rank, port, folder, stages = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
layout = ParallelLayout(tensor=2 // stages, pipeline=stages, data=2)
groups = join_groups(layout, rank, f"tcp://127.0.0.1:{port}", torch.device("cpu"))
lockstep, commands, generator = groups.lockstep, queue.SimpleQueue(), random.Random(rank // 2)
is_first, is_last = rank % 2 == 0 or stages == 1, rank % 2 == 1 or stages == 1
lockstep.meet(60)

def arrive():
    # The ranks of a worker get the same commands, one a little behind the other.
    for _ in range(60):
        time.sleep(generator.choice([0.0, 0.0, 0.0, 0.004, 0.02]))
        if rank % 2:
            time.sleep(0.001)
        commands.put(Step(StepPlan(generator.randint(1, 9), [], [])))
    commands.put(None)

def receive():
    command = commands.get()
    if command is None:
        raise EOFError
    return command

def run_pass():
    # Its exchange with the other data rank finds that one in the same pass.
    passes.append((list(lockstep.counts), lockstep.is_cut))
    assert groups.data.all_gather_last(torch.tensor([len(passes)])).tolist() == [len(passes)] * 2

def number(value):
    return torch.tensor([value], dtype=torch.int64)

passes, own, sent, tokens = [], 0, [], deque()
stepping = LockstepCommands(receive, lockstep, run_pass)
lockstep.watch(stepping.wake, lambda who: (print(who, file=sys.stderr), os._exit(7)))
threading.Thread(target=arrive, daemon=True).start()
try:
    while True:
        plan = stepping.receive().plan
        if len(tokens) == 2:  # of a step before, without which this one cannot begin
            token, work = tokens.popleft()
            work.wait()
            assert int(token) == own - 2
        lockstep.take_turn(plan.step, run_pass, cuts=plan.step > 3)
        assert lockstep.counts[rank // 2] == plan.step
        if not is_first:
            hidden = number(-1)
            groups.pipeline.receive(hidden, 0).wait()
            assert int(hidden) == own
        run_pass()
        if not is_last:
            sent.append((value := number(own), groups.pipeline.send(value, 1)))
            tokens.append((value := number(-1), groups.pipeline.receive(value, 1)))
        if not is_first:
            sent.append((value := number(own), groups.pipeline.send(value, 0)))
        own += 1
except EOFError:
    pass
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"own": own, "passes": passes}, file)
os._exit(0)  # gloo's threads now and then abort a process that ends by itself
"""


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_all_ranks_run_the_same_passes(tmp_path: Path, stages: int) -> None:
    """Covers two data ranks of two tensor ranks, or of two stages: the first stage waits for the last one's tokens."""
    port = str(free_port())
    assert run_forks(CODE, [(rank, port, tmp_path, stages) for rank in range(4)]) == [0] * 4
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert all(each["own"] == 60 for each in ranks)
    assert all(each["passes"] == ranks[0]["passes"] for each in ranks)
    passes = ranks[0]["passes"]
    assert all(any(counts) for counts, _ in passes)
    assert [sum(counts[data] > 0 for counts, _ in passes) for data in range(2)] == [60, 60]
    # A pass runs as two halves if all ranks that have tokens ask for it.
    assert all(is_cut == all(count > 3 for count in counts if count) for counts, is_cut in passes)
    assert {is_cut for _, is_cut in passes} == {False, True}


class LastWave:
    """A lockstep in whose last wave all ranks leave, this one first."""

    is_running, is_awaited, is_over, is_first_stage = True, False, False, True
    commands: LockstepCommands

    def is_called(self) -> bool:
        return False

    def leave(self) -> None:
        self.commands.wake()  # as when the others leave, which it hears of at once

    def stand_by(self, run_empty: Callable[[], None]) -> None:
        self.is_running = not self.is_over
        self.is_over = True

    def close(self) -> None:
        pass


def test_a_rank_that_hears_of_the_end_within_a_wave_ends_with_it() -> None:
    def gone() -> Command:
        raise EOFError("control side")

    lockstep: Any = LastWave()
    lockstep.commands = LockstepCommands(gone, lockstep, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(EOFError, match="control sides of all"):
                pool.submit(lockstep.commands.receive).result(30)
        finally:
            lockstep.commands.wake()


def test_a_rank_whose_plan_will_not_come_says_so() -> None:
    """The control side ended after the previous stage had received the plan, so this one's will not come."""

    def gone() -> Command:
        raise EOFError("control side")

    lockstep: Any = LastWave()
    lockstep.is_awaited = True
    lockstep.commands = LockstepCommands(gone, lockstep, lambda: None)
    with pytest.raises(EOFError, match=r"^control side$"):
        lockstep.commands.receive()
