"""Child processes that can be killed, for work that a hostile request can make slow or large."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from quire.errors import Overloaded, Unavailable
from tokenizer_svc.child import HEADER, TAKEN, Message

logger = logging.getLogger(__name__)

_START_SECONDS = 20.0
# Where it took too long, work that has had the processor for less of that time is not what was slow.
_LEAST_SHARE = 0.05


class ChildTooSlow(Exception):
    """The work took longer than it may; its process is gone."""


class ChildEnded(Exception):
    """The process of the work ended: for memory or for nesting."""


class _NotTaken(Exception):
    """The process ended before it had the message: whatever it died of, this was not it."""


class _Child:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, module: str, setup: Message) -> _Child:
        # Where Python finds packages, this one first, whether installed or run from a checkout, and nothing else of the
        # environment.
        places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PATH": os.environ.get("PATH", "")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        child = cls(process)
        child._stdin.write(setup.pack())
        return child

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def processor_seconds(self) -> float:
        """Time of the processor that it has taken so far; infinite where nobody can tell any more."""
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return math.inf

    async def ask(self, request: Message) -> Message:
        """
        Raises:
            _NotTaken: it ended before it had the message.
            ChildEnded: it ended while it worked.
        """
        self._stdin.write(request.pack())
        with contextlib.suppress(OSError):  # what it has read of it, it says itself
            await self._stdin.drain()
        try:
            await self._stdout.readexactly(len(TAKEN))
        except (OSError, asyncio.IncompleteReadError):
            raise _NotTaken from None
        try:
            fields, payload = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
            return Message(json.loads(await self._stdout.readexactly(fields)), await self._stdout.readexactly(payload))
        except (OSError, asyncio.IncompleteReadError):
            raise ChildEnded from None

    def kill(self) -> None:
        """Ends it; asyncio reaps it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Returns when it has ended."""
        self._stdin.close()
        await self._process.wait()


class ChildPool:
    """A few processes of one kind; one that is too slow or dies is replaced. Used from one event loop."""

    def __init__(
        self,
        module: str,
        setup: Message,
        probe: Message,
        *,
        work: str,
        timeout_seconds: float,
        max_waiting: int = 1024,
        num_processes: int = 2,
    ) -> None:
        """
        Args:
            module: what runs in the processes; it calls `child.run`.
            setup: what each is told first.
            probe: work whose answer shows that a process is ready.
            work: what it is, such as "conversations to render".
            timeout_seconds: longest time for one message.
            max_waiting: messages beside those that processes work on.
            num_processes: at most, each started once there is work for it; `start` starts the first.
        """
        self._module = module
        self._setup = dataclasses.replace(setup, fields={**setup.fields, "timeout_seconds": timeout_seconds})
        self._probe = probe
        self._work = work
        self._timeout_seconds = timeout_seconds
        self._max_waiting = max_waiting
        self._children: set[_Child] = set()
        # None: one that is yet to be started. What was used last is used next, and so the others not started in vain.
        self._idle: asyncio.LifoQueue[_Child | None] = asyncio.LifoQueue()
        for _ in range(num_processes):
            self._idle.put_nowait(None)
        self._waiting = 0
        self._replacing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts one process and waits until it is ready: what starts beside it has little of the processor then.

        Raises:
            Unavailable: it does not start.
        """
        self._idle.get_nowait()
        self._idle.put_nowait(await self._start_ready())

    async def prepare(self) -> None:
        """Starts one process before anything has been asked; where it fails, whoever asks something tries again."""
        self._idle.get_nowait()
        await self._refill()

    async def close(self) -> None:
        """Ends the processes."""
        # One that is just being started can only be killed once it is there.
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for child in tuple(self._children):
            child.kill()
            await child.wait()

    async def ask(self, request: Message) -> Message:
        """The answer of a process.

        Raises:
            ChildTooSlow: it took too long.
            ChildEnded: it ended without an answer.
            Overloaded: too much waits already, or others have the processor.
            Unavailable: processes do not start.
        """
        if self._waiting >= self._max_waiting:
            raise Overloaded(f"Too many {self._work} wait already; try again in a moment.")
        try:
            return await self._ask(request, fresh=False)
        except _NotTaken:  # somebody killed it while it idled
            try:
                return await self._ask(request, fresh=True)
            except _NotTaken:  # which has not even room for the message
                raise ChildEnded from None

    async def _ask(self, request: Message, fresh: bool) -> Message:
        """
        Raises:
            ChildTooSlow: it took too long.
            ChildEnded: the process ended while it worked.
            _NotTaken: it ended before that.
            Overloaded: it took too long, for it hardly had the processor.
        """
        async with self._child(fresh) as child:
            before = child.processor_seconds()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await child.ask(request)
            except TimeoutError:
                if child.processor_seconds() - before < _LEAST_SHARE * self._timeout_seconds:
                    raise Overloaded(f"This machine is too busy for {self._work}; try again in a moment.") from None
                raise ChildTooSlow from None

    @contextlib.asynccontextmanager
    async def _child(self, fresh: bool) -> AsyncIterator[_Child]:
        """A child of one's own, new if it must be. It goes back to the others only after a complete exchange."""
        self._waiting += 1
        try:
            child = await self._take()
        finally:
            self._waiting -= 1
        clean = False
        try:
            if fresh and child is not None:
                child.kill()
            if fresh or child is None or not child.alive:
                child = await self._start_ready()
            yield child
            clean = True
        finally:
            if clean:
                self._idle.put_nowait(child)
            else:
                self._replace(child)

    async def _take(self) -> _Child | None:
        """One that is ready; None where one is to be started first."""
        child = await self._idle.get()
        if child is None and self._children:  # of which one may be done before another has started
            self._replace(None)
            child = await self._idle.get()
        return child

    def _replace(self, child: _Child | None) -> None:
        """Kills a child that is of no use any more, if there was one, and starts another meanwhile."""
        if child is not None:
            child.kill()
        task = asyncio.create_task(self._refill())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _refill(self) -> None:
        child = None
        try:
            child = await self._start_ready()
        except Unavailable as error:
            logger.warning("%s", error.message)
        finally:
            self._idle.put_nowait(child)  # whoever takes none tries again

    async def _start_ready(self) -> _Child:
        """A new child that has answered once, so that its start does not count as its working time."""
        self._children = {child for child in self._children if child.alive}
        child = await _Child.start(self._module, self._setup)
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await child.ask(self._probe)
        except (TimeoutError, ChildEnded, _NotTaken) as error:
            child.kill()
            raise Unavailable(f"The process for {self._work} does not start; the log may say why.") from error
        return child
