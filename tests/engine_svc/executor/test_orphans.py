"""A supervisor, its worker and the worker's ranks: killing one of them leaves no orphan process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_svc.core.watchdog import EXIT_ENGINE_DIED
from tests.engine_svc.executor.test_ranked import is_running
from tests.support.waiting import eventually_now

SECONDS = 60.0

SUPERVISOR = """
import asyncio, os, sys
from quire.serve.supervisor import ProcessSpec, Supervisor

async def main():
    supervisor = Supervisor(lambda line: print(line, flush=True), lambda report: None)
    supervisor.settle()
    supervisor.start([ProcessSpec("engine", [sys.executable, "-c", {worker!r}], dict(os.environ))])
    await supervisor.failed

asyncio.run(main())
"""
WORKER = f"""
import os, sys, time
from engine_svc.executor.base import ExecutorDead
from quire.supervised import Stage, end_with_supervisor, report
from tests.engine_svc.executor.test_ranked import Subject

end_with_supervisor()
subject = Subject().load_fake()
report(Stage.READY)
print("pids", os.getpid(), *subject.pids(), flush=True)
try:
    while True:
        subject.check_alive()
        time.sleep(0.01)
except ExecutorDead as error:
    print("dead", error, flush=True)
    subject.close()
    sys.exit({EXIT_ENGINE_DIED})
"""


@dataclass
class Started:
    supervisor: subprocess.Popen[str]
    folder: Path  # for temporary files of all processes

    def line(self, beginning: str) -> list[str]:
        """Returns the words that follow `beginning` in the next line that starts with it."""
        assert self.supervisor.stdout is not None
        while words := self.supervisor.stdout.readline().split():
            if words[0] == beginning:
                return words[1:]
        pytest.fail(f"no line {beginning!r} came")

    def pids(self) -> list[int]:
        """Returns the process ids of the worker and its ranks."""
        return [int(word) for word in self.line("pids")]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    program = SUPERVISOR.format(worker=WORKER)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield Started(process, tmp_path)
        process.kill()


@pytest.mark.slow
def test_whichever_process_is_killed_none_is_left_without_those_that_it_works_for(started: Started) -> None:
    shared = shared_files()
    first = started.pids()
    os.kill(first[2], signal.SIGKILL)
    assert " ".join(started.line("dead")).startswith(f"rank 1 (process {first[2]}) was killed by SIGKILL")
    second = started.pids()
    expect_gone(first)
    os.kill(second[0], signal.SIGKILL)
    third = started.pids()
    expect_gone(second)
    assert all(map(is_running, third))
    started.supervisor.kill()
    expect_gone(third)
    assert list(started.folder.iterdir()) == []
    assert shared_files() <= shared


def shared_files() -> set[Path]:
    """Returns files in /dev/shm, except multiprocessing's semaphores: parallel tests use them, our processes do not."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


def expect_gone(pids: list[int]) -> None:
    eventually_now(lambda: not any(map(is_running, pids)), "they have ended", SECONDS)
