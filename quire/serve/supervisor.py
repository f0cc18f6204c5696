"""Supervises child processes: starts them, restarts them when they die, and stops them in order. Knows nothing of their
work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import StartupError
from quire.serve.output import Output
from quire.serve.priority import lower_priority
from quire.supervised import Report, Reports, Stage, control_path, supervised_environment

logger = logging.getLogger(__name__)

_REPEAT_SECONDS = 0.1


@dataclass(frozen=True)
class ProcessSpec:
    """How to start one service."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    kind: str = ""  # processes of the same kind do the same work, and can stand in for each other; "" for none
    niceness: int = 0  # see lower_priority
    descriptors: Sequence[int] = ()  # descriptors of this process that it inherits


@dataclass(frozen=True)
class Patience:
    """How long to wait for a process in various situations, in seconds.

    Attributes:
        pauses: pauses before the next start, after one death, two in a row, and so on. One more is too many.
        sound_life: deaths are no longer counted once the process has been ready this long.
        rest: pause of a process that died too often, while others stand in for it.
        kill_after: grace period beyond the time that a process may take to end.
    """

    pauses: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0)
    sound_life: float = 60.0
    rest: float = 300.0
    kill_after: float = 5.0


class _Child:
    """A supervised process, with the history of its predecessors."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.deaths = 0  # in a row
        self.ready_at: float | None = None
        self.failure = ""  # the failure that it reported
        self.last_end = ""  # how it last ended; empty if it has not
        self.stop = asyncio.Event()  # set when it should end, and not be restarted
        self.keeper: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def terminate(self) -> None:
        """Asks it to end, or not to start again."""
        self.stop.set()
        if self.process is not None and self.running:
            _signal(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """Kills it if it is still running."""
        if self.process is not None and self.running:
            logger.warning("%s does not exit; killing it", self.spec.name)
            _signal(self.process, signal.SIGKILL)


class Supervisor:
    """Owns the processes of one stack, inside one event loop.

    Attributes:
        failed: raises StartupError once the stack cannot continue.
        control_path: path at which the processes expect the socket for commands.
    """

    def __init__(
        self,
        on_output: Callable[[str], None],
        on_report: Callable[[Report], None],
        advice: str = "",
        patience: Patience = Patience(),
    ) -> None:
        """
        Args:
            on_output: called with each line that a process writes.
            on_report: called with each report of a process.
            advice: where to look if a process ended without saying why.
        """
        self._advice = advice
        self._patience = patience
        self._on_output = on_output
        self._on_report = on_report
        self._children: dict[str, _Child] = {}
        self._started = False
        self._reports = Reports()
        self.control_path = control_path(supervised_environment("", self._reports.path))
        asyncio.get_running_loop().add_reader(self._reports, self._receive)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Starts processes. Until `settle` is called, the death of any of them is final."""
        for spec in specs:
            child = self._children[spec.name] = _Child(spec)
            child.keeper = asyncio.create_task(self._keep(child))

    def update(self, specs: Iterable[ProcessSpec]) -> None:
        """Sets how running processes are started should they have to be restarted."""
        for spec in specs:
            if spec.name in self._children:
                self._children[spec.name].spec = spec

    async def until_ready(self, names: Sequence[str]) -> None:
        """Waits until all of these processes have become ready.

        Raises:
            StartupError: one of them has died.
        """
        for child in [self._children[name] for name in names]:
            while child.ready_at is None:
                if child.last_end:
                    raise StartupError(f"{child.spec.name} {child.last_end}. {self._advice}".rstrip())
                await asyncio.sleep(_REPEAT_SECONDS)

    async def end(self, names: Iterable[str], timeout: float) -> None:
        """Ends processes and forgets them.

        Args:
            timeout: seconds that they have to finish their work; then they are told to end at once.
        """
        children = [child for name in list(names) if (child := self._children.pop(name, None)) is not None]
        hurry = asyncio.Event()
        late = asyncio.get_running_loop().call_later(timeout, hurry.set)
        await _end(children, timeout, self._patience.kill_after, hurry)
        late.cancel()

    def settle(self) -> None:
        """To be called when all are up: from now on, a process that dies is restarted."""
        self._started = True

    async def stop(self, stages: Sequence[Sequence[str]], timeout: float, hurry: asyncio.Event) -> None:
        """Ends the processes stage by stage, and those of no stage last. May be called twice.

        Args:
            stages: the process names of each stage.
            timeout: seconds that they have to finish their work before they are killed.
            hurry: once set, processes still running are told again to end, and killed soon after.
        """
        deadline = time.monotonic() + timeout
        rest = tuple(name for name in self._children if not any(name in stage for stage in stages))
        for stage in (*stages, rest):
            children = [self._children[name] for name in stage if name in self._children]
            await _end(children, max(0.0, deadline - time.monotonic()), self._patience.kill_after, hurry)
        self._close()

    def _close(self) -> None:
        if self._reports.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._reports)
            self._reports.close()
        if not self.failed.done():
            self.failed.cancel()

    def _receive(self) -> None:
        """Handles all reports that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if (report := self._reports.receive()) is not None:
                    self._take(report)

    def _take(self, report: Report) -> None:
        child = self._children.get(report.name)
        if child is None:
            return  # it was removed, and this is its last report
        if report.stage is Stage.READY:
            child.ready_at = child.ready_at or time.monotonic()
        elif report.stage is Stage.FAILED:
            child.failure = report.message
        self._on_report(report)

    async def _keep(self, child: _Child) -> None:
        """Runs a process, and restarts it when it dies, until it should stop."""
        try:
            while not child.stop.is_set():
                try:
                    await self._run(child)
                except OSError as error:  # no memory or no process left, for now
                    child.failure = str(error)
                if not child.stop.is_set():
                    pause = self._pause(child)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(child.stop.wait(), pause)
        except StartupError as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    async def _run(self, child: _Child) -> None:
        child.ready_at, child.failure = None, ""
        output = await Output.open(self._on_output)
        try:
            child.process = process = await asyncio.create_subprocess_exec(
                *child.spec.command,
                env={**child.spec.environment, **supervised_environment(child.spec.name, self._reports.path)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=asyncio.subprocess.STDOUT,
                # So that Ctrl-C reaches only the supervisor, which stops the services in order.
                start_new_session=True,
                pass_fds=child.spec.descriptors,
            )
            output.release()
            if child.stop.is_set():
                _signal(process, signal.SIGTERM)
            await lower_priority(process, child.spec.niceness)
            await process.wait()
            await output.drain()
        finally:
            output.close()
        self._receive()  # its last report may say why it ended

    def _pause(self, child: _Child) -> float:
        """Seconds until the next start of a process that has died.

        Raises:
            StartupError: it will not be restarted, and the stack is useless without it.
        """
        name, how = child.spec.name, _describe_end(child)
        child.last_end = how
        if not self._started:
            raise StartupError(child.failure or f"{name} {how} before it was ready. {self._advice}".rstrip())
        if child.ready_at is not None and time.monotonic() - child.ready_at >= self._patience.sound_life:
            child.deaths = 0
        child.deaths += 1
        if child.deaths <= len(self._patience.pauses):
            pause = self._patience.pauses[child.deaths - 1]
            logger.warning("%s %s; restarting it in %g s", name, how, pause)
            return pause
        times = f"{child.deaths} times in a row"
        if not self._peer_runs(child):
            raise StartupError(f"{name} died {times}; giving up. The last time, it {how}. {self._advice}".rstrip())
        logger.error("%s died %s (it %s) and will not be restarted for %g min; the others of its kind keep serving",
                     name, times, how, self._patience.rest / 60)  # fmt: skip
        child.deaths = 0
        return self._patience.rest

    def _peer_runs(self, child: _Child) -> bool:
        others = (other for other in self._children.values() if other is not child)
        return any(
            child.spec.kind and other.spec.kind == child.spec.kind and other.running and other.ready_at is not None
            for other in others
        )


def _describe_end(child: _Child) -> str:
    code = child.process.returncode if child.process else None
    if child.failure:
        return f"could not start: {child.failure}"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Sends a signal. Not with the process object's method, which would poll the process and take its exit code from
    the task that waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


async def _end(children: Sequence[_Child], timeout: float, kill_after: float, hurry: asyncio.Event) -> None:
    keepers = [child.keeper for child in children if child.keeper]
    if not keepers:
        return
    for child in children:
        child.terminate()
    hurried: asyncio.Future[Any] = asyncio.create_task(hurry.wait())
    ending: asyncio.Future[Any] = asyncio.gather(*keepers, return_exceptions=True)
    # Work inside the processes has its own time limit; the margin lets them keep to it.
    await asyncio.wait([ending, hurried], timeout=timeout + kill_after, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if hurry.is_set():
        await _repeat(children, ending, kill_after)
    for child in children:
        child.kill()
    await ending


async def _repeat(children: Sequence[_Child], ending: asyncio.Future[Any], seconds: float) -> None:
    """Tells the processes again to end: repeatedly, as a signal that directly follows the same one may be lost."""
    deadline = time.monotonic() + seconds
    while not ending.done() and time.monotonic() < deadline:
        for child in children:
            child.terminate()
        await asyncio.wait([ending], timeout=_REPEAT_SECONDS)
