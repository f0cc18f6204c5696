"""Executors of several ranks and how they fail; the ranks are real processes without a model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine_svc.executor.base import ExecutorDead
from engine_svc.executor.broadcast import Broadcast
from engine_svc.executor.messages import Command
from engine_svc.executor.multiproc import RankProcesses
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from engine_svc.plan import CacheSize, NewSequence, ScheduledSequence, StepPlan
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from tests.support import fake_rank
from tests.support.engine_options import engine_options
from tests.support.plans import sampling_plan
from tests.support.waiting import eventually_now

SECONDS = 60.0
RANKS = 3


class Subject(RankedExecutor):
    """An executor of fake ranks."""

    def _start(self, model: ModelOptions, options: EngineOptions) -> RankGroup:
        self.processes = RankProcesses(RANKS, "tests.support.fake_rank")
        return self.processes

    def load_fake(self, step_timeout: float = SECONDS, at_once: int | None = None) -> Subject:
        self.load(
            ModelOptions(), engine_options(step_timeout_seconds=step_timeout, max_parallel_loading_workers=at_once)
        )
        return self

    def pids(self) -> list[int]:
        names = [self.processes.name(rank) for rank in range(RANKS)]
        return [int(re.findall(r"\d+", name)[-1]) for name in names]

    def fate(self, step: int) -> str:
        """Runs a step during which the executor dies, maybe not before all ranks got it; returns the error.

        All ranks have ended by then, or are about to.
        """
        with pytest.raises(ExecutorDead) as raised:
            self._run(step)
        self.expect_the_end()
        return str(raised.value)

    def _run(self, step: int) -> None:
        self.submit(plan(step))
        self.collect()

    def expect_the_end(self) -> None:
        eventually_now(lambda: not any(map(is_running, self.pids())), "all ranks have ended", SECONDS)


def is_running(pid: int) -> bool:
    """Returns whether the process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def plan(step: int) -> StepPlan:
    return StepPlan(step, [], [ScheduledSequence(4, 0, 1, 1, [])])


@pytest.fixture
def subject() -> Iterator[Subject]:
    executor = Subject()
    yield executor
    executor.close()
    executor.close()
    assert not any(map(is_running, executor.pids()))


def test_rank_0_answers_for_all_as_many_steps_as_are_under_way(subject: Subject) -> None:
    subject.load_fake()
    subject.allocate(CacheSize(10))
    subject.submit(plan(1))
    subject.submit(plan(2))
    for _ in range(2):
        result = subject.collect()
        assert (result.sampled_slots, result.sampled_token_ids) == ([4], [[0]])
    subject.check_alive(asks=True)


def test_ranks_are_not_sent_the_secret_that_they_have_proved_to_know(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    to_each = Broadcast.to_each

    def spy(broadcast: Broadcast, commands: Sequence[Command], seconds: float) -> None:
        sent.extend(map(str, commands))
        to_each(broadcast, commands, seconds)

    monkeypatch.setattr(Broadcast, "to_each", spy)
    subject.load(ModelOptions(), engine_options(rank_secret="of the test"))
    assert len(sent) == RANKS
    assert not [command for command in sent if "of the test" in command]


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 2)])
def test_no_more_ranks_read_weights_at_a_time_than_may(
    subject: Subject, at_once: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_TEST_FOLDER", str(tmp_path))
    subject.load_fake(at_once=at_once)
    seen = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(seen) == RANKS
    assert max(seen) <= most
    subject.submit(plan(1))
    assert subject.collect().sampled_slots == [4]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (fake_rank.EXITS, r"rank 1 \(process \d+\) ended with exit code 3"),
        (fake_rank.IS_KILLED, r"rank 1 \(process \d+\) was killed by SIGKILL, as the kernel does when memory runs out"),
        (fake_rank.LEAVES_OTHERS, r"rank 1 \(process \d+\) ended with exit code 3"),
        (fake_rank.FAILS, r"rank 1 \(process \d+\) failed: OutOfMemoryError: no memory"),
    ],
)
def test_a_rank_that_is_lost_in_a_step_is_named_at_once_and_the_others_wait_for_it_no_longer(
    subject: Subject, step: int, expected: str
) -> None:
    subject.load_fake()
    assert re.fullmatch(expected, subject.fate(step))


@pytest.mark.parametrize("step", [fake_rank.HANGS, fake_rank.IS_STOPPED])
def test_a_step_that_does_not_end_is_given_up_when_the_time_is_over_that_it_may_take(
    subject: Subject, step: int, capfd: pytest.CaptureFixture[str]
) -> None:
    subject.load_fake(step_timeout=1.0)
    said = subject.fate(step)
    assert re.fullmatch(r"no answer in 1 s from rank 0 \(.*\), rank 1 \(.*\), rank 2 \(process \d+\)", said)
    assert "in run_step" in capfd.readouterr().err


def test_a_rank_that_does_not_read_holds_nobody_up_for_longer(subject: Subject) -> None:
    subject.load_fake(step_timeout=1.0)
    os.kill(subject.pids()[1], signal.SIGSTOP)
    prompt = list(range(2**21))  # larger than a slot of the ring buffer
    with pytest.raises(ExecutorDead, match=r"rank 1 \(process \d+\) does not read"):
        subject.submit(StepPlan(1, [NewSequence(0, prompt, len(prompt), 0, [], sampling_plan())], []))
    subject.expect_the_end()


def test_a_rank_that_is_frozen_is_found_where_no_step_runs(subject: Subject) -> None:
    subject.load_fake(step_timeout=1.0)
    pid = subject.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    subject.check_alive()
    with pytest.raises(ExecutorDead, match=rf"no answer in 1 s from .*rank 1 \(process {pid}\)"):
        subject.check_alive(asks=True)
    subject.expect_the_end()


def test_who_has_no_step_under_way_hears_of_a_lost_rank(subject: Subject) -> None:
    subject.load_fake()
    woken = threading.Event()
    subject.wake_by(woken.set)
    subject.check_alive()
    pid = subject.pids()[2]
    os.kill(pid, signal.SIGTERM)
    assert woken.wait(SECONDS)
    with pytest.raises(ExecutorDead, match=rf"rank 2 \(process {pid}\) was killed by SIGTERM"):
        subject.check_alive()
    subject.expect_the_end()
    with pytest.raises(ExecutorDead, match="SIGTERM"):
        subject.submit(plan(1))


PARENT = """
import time
from tests.engine_svc.executor.test_ranked import Subject, plan
subject = Subject().load_fake()
{action}
print(*subject.pids(), flush=True)
time.sleep(999)
"""


@pytest.mark.parametrize("action", ["", "subject.submit(plan(1004))"], ids=["idle", "in a step"])
def test_a_worker_that_is_killed_leaves_no_process_and_no_file(action: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT.format(action=action)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert all(map(is_running, pids))
        process.kill()
    eventually_now(lambda: not any(map(is_running, pids)), "no rank is left", SECONDS)
    assert list(tmp_path.iterdir()) == []
