"""The supervisor, with small Python programs in place of services."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from quire.errors import StartupError
from quire.serve.supervisor import Patience, ProcessSpec, Supervisor
from quire.supervised import Report, Reports, Stage, supervised_environment
from tests.support.waiting import eventually

SECONDS = 60.0
READY = "from quire.supervised import Stage, report; report(Stage.READY)\n"
# On SIGTERM it ends after this many seconds, on a second one at once.
SERVICE = """
import signal, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
print("{name} up", flush=True)
while len(signals) < 2 and (not signals or time.monotonic() < signals[0] + {seconds}):
    time.sleep(0.01)
print("{name} gone", flush=True)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(999)"
FOREVER = READY + "import time; time.sleep(999)"


class Stack:
    """A supervisor, and what it has reported."""

    def __init__(self, patience: Patience) -> None:
        self.lines: list[str] = []
        self.reports: list[Report] = []
        self.hurry = asyncio.Event()
        self.supervisor = Supervisor(self.lines.append, self.reports.append, "See the log.", patience)

    def start(self, name: str, program: str, kind: str = "", niceness: int = 0) -> None:
        command = [sys.executable, "-c", program]
        self.supervisor.start([ProcessSpec(name, command, dict(os.environ), kind, niceness)])

    async def wait_for(self, line: str) -> None:
        await eventually(lambda: line in self.lines, line, SECONDS)

    async def wait_ready(self, name: str, times: int = 1) -> None:
        ready = Report(name, Stage.READY)
        await eventually(lambda: self.reports.count(ready) >= times, f"{name} ready", SECONDS)

    async def failure(self) -> str:
        with pytest.raises(StartupError) as raised:
            await asyncio.wait_for(asyncio.shield(self.supervisor.failed), SECONDS)
        return str(raised.value)

    async def stop(self, *first: str, timeout: float = SECONDS) -> None:
        await self.supervisor.stop([[name] for name in first], timeout, self.hurry)


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Callable[..., Stack]]:
    """Makes supervisors with short timeouts, and stops them afterwards."""
    made: list[Stack] = []

    def start(**patience: float) -> Stack:
        made.append(Stack(Patience(pauses=(0.01, 0.01), **{"kill_after": SECONDS, **patience})))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for stack in made:
        stack.hurry.set()
        await stack.stop()


async def test_what_dies_is_started_again(make: Callable[..., Stack]) -> None:
    stack = make()
    stack.start("service", READY + "print('up', flush=True); import os; os.abort()")
    stack.supervisor.settle()
    await eventually(lambda: stack.lines.count("up") >= 2, "two starts", SECONDS)


async def test_a_death_while_starting_says_why(make: Callable[..., Stack]) -> None:
    stack = make()
    stack.start("service", "raise SystemExit(7)")
    assert await stack.failure() == "service ended with exit code 7 before it was ready. See the log."
    other = make()
    other.start("service", "from quire.supervised import Stage, report; report(Stage.FAILED, message='No such model.')")
    assert await other.failure() == "No such model."


async def test_a_service_lets_others_run_first_with_all_its_threads_and_its_group(make: Callable[..., Stack]) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    nicer = min(19, own + 5)
    program = f"""
import os, pathlib, threading, time
group = pathlib.Path("/proc/self/autogroup")
is_nice = lambda: os.getpriority(os.PRIO_PROCESS, 0) == {nicer} and "nice {nicer}" in (
    group.read_text() if group.exists() else "nice {nicer}")
while not is_nice():
    time.sleep(0.01)
threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), flush=True)).start()
"""
    stack = make()
    stack.supervisor.settle()
    stack.start("service", program, niceness=5)
    await stack.wait_for(str(nicer))
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


async def test_a_process_that_the_system_refuses_counts_as_dead(make: Callable[..., Stack]) -> None:
    stack = make()
    stack.supervisor.settle()
    stack.supervisor.start([ProcessSpec("router", ["/nowhere/python"], {})])
    assert (
        "router died 3 times in a row; giving up. The last time, it could not start: [Errno 2]" in await stack.failure()
    )


async def test_a_process_of_a_dead_service_holds_nothing_up(make: Callable[..., Stack]) -> None:
    """The child inherits the service's open output, which must not delay the restart."""
    stack = make()
    stack.supervisor.settle()
    program = "import os, subprocess; subprocess.Popen(['sleep', '5']); print('up', flush=True); os._exit(1)"
    stack.start("tokenizer", program)
    await eventually(lambda: stack.lines.count("up") >= 2, "two starts", SECONDS)


async def test_a_service_that_dies_for_ever_ends_the_stack(make: Callable[..., Stack]) -> None:
    stack = make()
    stack.start("router", READY + "import os; os.abort()")
    stack.start("engine-0", FOREVER, kind="engine")
    stack.supervisor.settle()
    assert await stack.failure() == (
        "router died 3 times in a row; giving up. The last time, it was killed by SIGABRT. See the log."
    )


async def test_an_engine_that_dies_for_ever_is_given_up_alone(
    make: Callable[..., Stack], caplog: pytest.LogCaptureFixture
) -> None:
    stack = make()
    stack.start("engine-0", FOREVER, kind="engine")
    await stack.wait_ready("engine-0")
    stack.supervisor.settle()
    stack.start("engine-1", "raise SystemExit(70)", kind="engine")
    await eventually(lambda: "engine-1 died 3 times in a row" in caplog.text, "engine-1 given up", SECONDS)
    assert "will not be restarted for 5 min; the others of its kind keep serving" in caplog.text
    assert not stack.supervisor.failed.done()


async def test_a_given_up_engine_gets_another_chance(make: Callable[..., Stack], tmp_path: Path) -> None:
    stack = make(rest=0.01)
    stack.start("engine-0", FOREVER, kind="engine")
    await stack.wait_ready("engine-0")
    stack.supervisor.settle()
    # It fails five times: three until it is given up, and two after its rest.
    count = f"from pathlib import Path; f = Path({str(tmp_path / 'count')!r}); n = f.exists() and len(f.read_text())\n"
    stack.start("engine-1", f"{count}f.write_text('x' * (n + 1))\nif n < 5: raise SystemExit(1)\n{FOREVER}", "engine")
    await stack.wait_ready("engine-1")
    assert not stack.supervisor.failed.done()


async def test_engines_that_all_die_end_the_stack(make: Callable[..., Stack]) -> None:
    stack = make()
    stack.supervisor.settle()
    for name in ("engine-0", "engine-1"):
        stack.start(name, "raise SystemExit(70)", kind="engine")
    assert "3 times in a row; giving up" in await stack.failure()


async def test_a_sound_life_makes_up_for_deaths_before(make: Callable[..., Stack]) -> None:
    stack = make(sound_life=0.0)
    stack.supervisor.settle()
    stack.start("service", READY)
    await stack.wait_ready("service", times=6)


async def test_stopping_leaves_the_time_that_was_asked_for(make: Callable[..., Stack]) -> None:
    stack = make(kill_after=0.0)
    for name, seconds in (("gateway", 0.5), ("router", 0), ("engine", 0)):
        stack.start(name, SERVICE.format(name=name, seconds=seconds))
        await stack.wait_for(f"{name} up")
    await stack.stop("gateway", "router")
    assert stack.lines[-3:] == ["gateway gone", "router gone", "engine gone"]


async def test_what_outlasts_its_time_is_killed(make: Callable[..., Stack], caplog: pytest.LogCaptureFixture) -> None:
    stack = make(kill_after=0.1)
    stack.start("gateway", DEAF)
    await stack.wait_for("deaf")
    await stack.stop("gateway", timeout=0.1)
    assert "gateway does not exit; killing it" in caplog.text


async def test_who_waits_for_a_process_gets_its_exit_code(
    make: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Popen.send_signal polls the process and may reap its exit code before the waiter does."""

    def fail(*_: object) -> None:
        pytest.fail("a signal by Popen")

    monkeypatch.setattr(subprocess.Popen, "send_signal", fail)
    stack = make()
    stack.start("one", SERVICE.format(name="one", seconds=0))
    await stack.wait_for("one up")
    await stack.stop()
    assert "one gone" in stack.lines


async def test_a_second_signal_ends_at_once(make: Callable[..., Stack]) -> None:
    stack = make()
    for name in ("gateway", "engine"):
        stack.start(name, SERVICE.format(name=name, seconds=SECONDS))
        await stack.wait_for(f"{name} up")
    stopping = asyncio.create_task(stack.stop("gateway"))
    await asyncio.sleep(0)
    stack.hurry.set()
    start = time.monotonic()
    await stopping
    assert stack.lines[-2:] == ["gateway gone", "engine gone"]
    assert time.monotonic() - start < SECONDS


async def test_what_dies_while_the_first_stage_ends_is_started_again(make: Callable[..., Stack]) -> None:
    """Streams that finish while the gateway drains need the services behind it."""
    stack = make()
    stack.start("gateway", SERVICE.format(name="gateway", seconds=SECONDS))
    await stack.wait_for("gateway up")
    stack.supervisor.settle()
    stopping = asyncio.create_task(stack.stop("gateway"))
    stack.start("tokenizer", READY)
    await stack.wait_ready("tokenizer", times=2)
    stack.hurry.set()
    await stopping


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_child_of_a_killed_supervisor_ends_at_once() -> None:
    child = "from quire.supervised import end_with_supervisor; end_with_supervisor(); " + DEAF
    parent = (
        "import os, subprocess, sys; from quire.supervised import supervised_environment as e\n"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}], env={{**os.environ, **e('a', '/none')}})\n"
        "c.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "deaf\n"  # it ignores SIGTERM
        process.kill()
        assert process.stdout.read() == ""  # returns once both are gone


@pytest.mark.skipif(os.getuid() != 0, reason="only root can seem another user")
def test_reports_of_other_users_are_passed_over() -> None:
    with contextlib.closing(Reports()) as reports, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for user, fraction in ((65534, 0.5), (0, 0.25)):
            data = json.dumps({"name": "engine", "stage": "ready", "fraction": fraction}).encode()
            who = struct.pack("iii", os.getpid(), user, user)
            credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)
            sender.sendmsg([data], [credentials], 0, "\0" + reports.path[1:])
        assert reports.receive() is None
        assert reports.receive() == Report("engine", Stage.READY, 0.25)


def test_a_child_that_comes_up_after_its_supervisor_is_gone_ends() -> None:
    environment = {**os.environ, **supervised_environment("engine", "/none"), "QUIRE_SUPERVISOR_PROCESS": "1"}
    code = "from quire.supervised import end_with_supervisor as e; e(); print('alive')"
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=SECONDS)
    assert (child.returncode, child.stdout) == (1, b"")
