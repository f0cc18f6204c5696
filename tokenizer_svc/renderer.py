"""Renders chat templates in child processes that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from quire.bounds import MAX_MESSAGES
from quire.errors import InvalidRequest, Overloaded, Unavailable
from tokenizer_svc.render_process import HEADER, pack

logger = logging.getLogger(__name__)

_NUM_PROCESSES = 2
_MAX_WAITING = 1024
_START_SECONDS = 20.0


class _Child:
    """One rendering process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, setup: Mapping[str, Any]) -> _Child:
        # The package's own place, whether installed or run from a checkout, and nothing else of the environment.
        environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.environ.get("PATH", "")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenizer_svc.render_process",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        child = cls(process)
        child._stdin.write(pack(dict(setup)))
        return child

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        self._stdin.write(pack(dict(request)))
        await self._stdin.drain()
        (size,) = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
        answer: dict[str, str] = json.loads(await self._stdout.readexactly(size))
        return answer

    def kill(self) -> None:
        """Ends it; asyncio reaps it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Returns when it has ended."""
        self._stdin.close()
        await self._process.wait()


class ChatRenderer:
    """A few rendering processes; one that is too slow or dies is replaced."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_chars: int,
    ) -> None:
        self._setup = {
            "templates": dict(templates), "special_tokens": dict(special_tokens),
            "max_chars": max_chars, "max_messages": MAX_MESSAGES, "timeout_seconds": timeout_seconds,
        }  # fmt: skip
        self._timeout_seconds = timeout_seconds
        self._children: set[_Child] = set()
        self._idle: asyncio.Queue[_Child | None] = asyncio.Queue()  # None: one that is yet to be started
        self._waiting = 0
        self.has_template = "default" in templates

    async def start(self) -> None:
        """Starts the processes and waits until they are ready.

        Raises:
            Unavailable: they do not start.
        """
        for child in await asyncio.gather(*(self._start_ready() for _ in range(_NUM_PROCESSES))):
            self._idle.put_nowait(child)

    async def close(self) -> None:
        """Ends the processes."""
        for child in self._children:
            child.kill()
            await child.wait()

    async def render(self, messages_json: bytes, **request: Any) -> str:
        """See `ChatTemplates.render`.

        Args:
            messages_json: the conversation, which goes to the process as it is.

        Raises:
            InvalidRequest: the template cannot render this conversation, or takes too long or too much.
            Overloaded: too many conversations wait already.
        """
        try:
            request["messages_json"] = messages_json.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"messages is not UTF-8: {error}", parameter="messages") from None
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too many conversations wait to be rendered; try again in a moment.")
        try:
            answer = await self._ask(request, fresh=False)
        except (OSError, asyncio.IncompleteReadError):
            # Somebody may have killed the process while it idled: only a new one's end is the conversation's fault.
            try:
                answer = await self._ask(request, fresh=True)
            except (OSError, asyncio.IncompleteReadError):
                raise InvalidRequest(
                    "The chat template used too much memory or nested too deeply for this conversation.",
                    parameter="messages",
                ) from None
        if "error" in answer:
            raise InvalidRequest(answer["error"], parameter="messages")
        return answer["text"]

    async def _ask(self, request: Mapping[str, Any], fresh: bool) -> dict[str, str]:
        """
        Raises:
            InvalidRequest: the template takes too long.
            OSError, asyncio.IncompleteReadError: the process ended.
        """
        async with self._child(fresh) as child:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await child.ask(request)
            except TimeoutError:
                raise InvalidRequest(
                    f"The chat template took longer than {self._timeout_seconds:g} s for this conversation.",
                    parameter="messages",
                ) from None

    @contextlib.asynccontextmanager
    async def _child(self, fresh: bool) -> AsyncIterator[_Child]:
        """A child of one's own, new if it must be. It goes back to the others only after a complete exchange."""
        self._waiting += 1
        try:
            child = await self._idle.get()
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
            if child is not None and not clean:
                child.kill()
            self._idle.put_nowait(child if clean else None)

    async def _start_ready(self) -> _Child:
        """A new child that has rendered once, so that its start does not count as rendering time."""
        self._children = {child for child in self._children if child.alive}
        child = await _Child.start(self._setup)
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await child.ask(_PROBE)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            child.kill()
            raise Unavailable("The process that renders chat templates does not start; the log may say why.") from error
        return child


_PROBE: Mapping[str, Any] = {
    "messages_json": '[{"role": "user", "content": ""}]', "tools": None, "add_generation_prompt": False,
    "continue_final_message": False, "variables": {}, "template": "ready",
}  # fmt: skip
