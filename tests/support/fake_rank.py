"""A rank process without torch or a model. The step number of a plan decides what happens to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.channel import Channel
from engine_svc.executor.child import begin_child
from engine_svc.executor.messages import Done, Failed, Loaded, LoadModel, Step, Stepped
from engine_svc.plan import KvCacheSpec, StepPlan, StepResult

# Steps that rank 1 does not survive, or not alone; in all of them the others wait for good, as they would in a
# collective.
EXITS, IS_KILLED, FAILS, HANGS, IS_STOPPED, LEAVES_OTHERS = range(1001, 1007)
SPEC = KvCacheSpec("Fake", "float32", "cpu", 100, 100, 1, 100, "none", 16, 100)


def run_step(rank: int, plan: StepPlan) -> Stepped | Failed:
    if plan.step in (EXITS, LEAVES_OTHERS) and rank == 1:
        sys.exit(3)
    if plan.step == LEAVES_OTHERS:
        return Failed("RuntimeError: Connection reset by peer", startup=False)
    if plan.step == FAILS and rank == 1:
        return Failed("OutOfMemoryError: no memory", startup=False)
    if rank == 1 and plan.step in (IS_KILLED, IS_STOPPED):
        os.kill(os.getpid(), signal.SIGKILL if plan.step == IS_KILLED else signal.SIGSTOP)
    if plan.step >= EXITS:
        time.sleep(999)
    return Stepped(StepResult([sequence.slot for sequence in plan.scheduled], [[rank]], {}, {}, 1.0, 1.0))


def take_turn(channel: Channel, inbox: Inbox) -> None:
    """Pretends to read weights, and records in a folder which processes do so at the same time."""
    folder = Path(os.environ["QUIRE_TEST_FOLDER"])
    channel.send(Done())
    inbox.receive()
    mark = folder / f"reads-{os.getpid()}"
    mark.touch()
    time.sleep(0.05)
    (folder / f"saw-{os.getpid()}").write_text(str(len(list(folder.glob("reads-*")))))
    mark.unlink()
    channel.send(Done())
    inbox.receive()


def run(argument: str) -> None:
    (channel, inbox), rank = begin_child(argument), 0
    while True:
        try:
            command = inbox.receive()
        except EOFError:
            return
        if isinstance(command, LoadModel):
            rank = command.rank
            if command.in_turns:
                take_turn(channel, inbox)
            channel.send(Loaded(SPEC))
        else:
            channel.send(run_step(rank, command.plan) if isinstance(command, Step) else Done())
