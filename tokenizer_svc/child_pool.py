"""Pools of killable child processes, for work that a hostile request can make slow or large."""

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

# Transformers takes seconds to import, and many times that from a cold disk or on a busy machine. A process that ends
# is noticed at once.
_START_SECONDS = 120.0
# Work that exceeded its time limit but got less than this share of it in CPU time was not slow itself.
_LEAST_SHARE = 0.05


class ChildTooSlow(Exception):
    """The work exceeded its time limit; its process was killed."""


class ChildEnded(Exception):
    """The process ended during the work, because of memory use or nesting depth."""


class _NotTaken(Exception):
    """The process ended before it had read the message, which is therefore not the cause."""


class _Child:
    """A child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, module: str, setup: Message) -> _Child:
        # PYTHONPATH starts with this package's parent, so that it works both installed and from a checkout. Nothing
        # else but PATH is inherited from the environment.
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
        """CPU time that it has used so far; infinite if that can no longer be read."""
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return math.inf

    async def ask(self, request: Message) -> Message:
        """Sends a request and returns the answer.

        Raises:
            _NotTaken: the process ended before it had read the message.
            ChildEnded: the process ended during the work.
        """
        self._stdin.write(request.pack())
        with contextlib.suppress(OSError):  # the process itself acknowledges what it has read
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
        """Kills the process; asyncio reaps it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Returns once the process has ended."""
        self._stdin.close()
        await self._process.wait()


class ChildPool:
    """A few child processes of one kind; one that is too slow or dies is replaced. Used from one event loop."""

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
            module: the module that the processes run; it calls `child.run`.
            setup: the first message to each process.
            probe: a request whose answer shows that a process is ready.
            work: description of the work for messages, such as "conversations to render".
            timeout_seconds: time limit for one message.
            max_waiting: maximum number of messages that wait for a process.
            num_processes: maximum number of processes, each started once there is work for it; `start` and `prepare`
                start the first.
        """
        self._module = module
        self._setup = dataclasses.replace(setup, fields={**setup.fields, "timeout_seconds": timeout_seconds})
        self._probe = probe
        self._work = work
        self._timeout_seconds = timeout_seconds
        self._max_waiting = max_waiting
        self._children: set[_Child] = set()
        # None stands for a process that has not been started. The one used last is used next, so that the others are
        # started only if needed.
        self._idle: asyncio.LifoQueue[_Child | None] = asyncio.LifoQueue()
        for _ in range(num_processes):
            self._idle.put_nowait(None)
        self._waiting = 0
        self._replacing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts one process and waits until it is ready; another one started beside it would get little CPU time.

        Raises:
            Unavailable: the process does not start.
        """
        self._idle.get_nowait()
        self._idle.put_nowait(await self._start_ready())

    async def prepare(self) -> None:
        """Starts one process ahead of the first request, unless one has come before; if that fails, a request tries
        again."""
        if not self._children and not self._idle.empty():
            self._idle.get_nowait()
            await self._refill()

    async def close(self) -> None:
        """Kills all processes."""
        # A process that is still being started can only be killed once it exists.
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for child in tuple(self._children):
            child.kill()
            await child.wait()

    async def ask(self, request: Message) -> Message:
        """Has a process answer the request.

        Raises:
            ChildTooSlow: the work exceeded its time limit.
            ChildEnded: the process ended without an answer.
            Overloaded: too many requests wait already, or the machine is too busy.
            Unavailable: no process can be started.
        """
        if self._waiting >= self._max_waiting:
            raise Overloaded(f"Too many {self._work} are already waiting; try again in a moment.")
        try:
            return await self._ask(request, fresh=False)
        except _NotTaken:  # it was killed while idle
            try:
                return await self._ask(request, fresh=True)
            except _NotTaken:  # even a new process has no room for the message
                raise ChildEnded from None

    async def _ask(self, request: Message, fresh: bool) -> Message:
        """Has one process answer the request.

        Raises:
            ChildTooSlow: the work exceeded its time limit.
            ChildEnded: the process ended during the work.
            _NotTaken: the process ended before that.
            Overloaded: the work exceeded its time limit because it got hardly any CPU time.
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
        """Borrows a child, a new one if `fresh`. It is returned to the pool only after a complete exchange, and
        replaced otherwise."""
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
        """Takes an idle child; None means that one must be started first."""
        child = await self._idle.get()
        if child is None and self._children:  # one of them may become idle before a new one has started
            self._replace(None)
            child = await self._idle.get()
        return child

    def _replace(self, child: _Child | None) -> None:
        """Kills a useless child, if there is one, and starts another in the background."""
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
            self._idle.put_nowait(child)  # a request that takes None tries again

    async def _start_ready(self) -> _Child:
        """Starts a child and waits for its first answer, so that its startup does not count as working time."""
        self._children = {child for child in self._children if child.alive}
        child = await _Child.start(self._module, self._setup)
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await child.ask(self._probe)
        except (TimeoutError, ChildEnded, _NotTaken) as error:
            child.kill()
            raise Unavailable(f"The process for {self._work} could not be started; the log may say why.") from error
        return child
