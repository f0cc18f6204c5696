"""Ranks that get commands at different times run the same passes, and none while there is nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data_ranks import free_port

ROOT = Path(__file__).parents[3]
CODE = """
import json, os, queue, random, sys, threading, time
import torch
from engine_svc.executor.messages import Step
from engine_svc.executor.waves import LockstepCommands
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import StepPlan

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
layout = ParallelLayout(tensor=2, data=2)
groups = join_groups(layout, rank, f"tcp://127.0.0.1:{port}", torch.device("cpu"))
lockstep, commands, generator = groups.lockstep, queue.SimpleQueue(), random.Random(rank // 2)
lockstep.meet(60)

def arrive():
    # The ranks of a tensor group get the same commands, one a little behind the other.
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

passes, own = [], 0

def note():
    passes.append((list(lockstep.counts), lockstep.is_cut))

stepping = LockstepCommands(receive, lockstep, note)
lockstep.watch(stepping.wake, lambda who: sys.exit(who))
threading.Thread(target=arrive, daemon=True).start()
try:
    while True:
        plan = stepping.receive().plan
        lockstep.take_turn(plan.step, note, cuts=plan.step > 3)
        assert lockstep.counts[rank // 2] == plan.step
        note()
        own += 1
except EOFError:
    pass
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"own": own, "passes": passes}, file)
os._exit(0)  # gloo's threads now and then abort a process that ends by itself
"""


@pytest.mark.slow
def test_all_ranks_run_the_same_passes(tmp_path: Path) -> None:
    port = str(free_port())
    processes = [
        subprocess.Popen([sys.executable, "-c", CODE, str(rank), port, str(tmp_path)], cwd=ROOT) for rank in range(4)
    ]
    assert [process.wait(120) for process in processes] == [0] * 4
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert all(each["own"] == 60 for each in ranks)
    assert all(each["passes"] == ranks[0]["passes"] for each in ranks)
    passes = ranks[0]["passes"]
    assert all(any(counts) for counts, _ in passes)
    assert [sum(counts[data] > 0 for counts, _ in passes) for data in range(2)] == [60, 60]
    # One runs as two halves if all say so that have tokens.
    assert all(is_cut == all(count > 3 for count in counts if count) for counts, is_cut in passes)
    assert {is_cut for _, is_cut in passes} == {False, True}
