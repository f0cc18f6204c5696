"""Sends requests when they are due and collects the answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.bench.answer import Answer
from quire.bench.connections import Connections


@dataclass(frozen=True)
class Call:
    """A request that is ready to be sent.

    Attributes:
        due: when to send it, in seconds from the beginning.
    """

    body: bytes
    request_id: str
    prompt_tokens: int
    due: float = 0.0


@dataclass(frozen=True)
class Run:
    """The answers to all requests, in order, and the total duration."""

    seconds: float
    answers: Sequence[Answer]


async def run_load(
    connections: Connections, calls: Sequence[Call], limit: int | None, timeout: float, on_done: Callable[[], None]
) -> Run:
    """Sends all requests and returns their answers.

    Args:
        limit: maximum number of concurrent requests; None means no limit.
        timeout: seconds that a request may take.
        on_done: called after each request.
    """
    gate = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()
    start = time.perf_counter()

    async def send(call: Call) -> Answer:
        answer = Answer(call.prompt_tokens)
        if (wait := start + call.due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        arrived = time.perf_counter()
        async with gate:
            answer.start = time.perf_counter()
            answer.queued = answer.start - arrived
            await ask(connections, call, answer, timeout)
        on_done()
        return answer

    answers = await asyncio.gather(*map(send, calls))
    return Run(time.perf_counter() - start, answers)


async def ask(connections: Connections, call: Call, answer: Answer, timeout: float) -> None:
    """Sends one request, with a deadline."""
    try:
        async with asyncio.timeout(timeout):
            await connections.ask(call.body, call.request_id, answer)
    except TimeoutError:
        answer.fail(f"not done after {timeout:g} s")
    answer.finish()


async def wait_until_ready(connections: Connections, call: Call, seconds: float) -> str:
    """Sends a request until it succeeds; returns the last error, or an empty string on success."""
    deadline = time.monotonic() + seconds
    while True:
        answer = Answer(call.prompt_tokens)
        await ask(connections, call, answer, max(1.0, deadline - time.monotonic()))
        if answer.succeeded or time.monotonic() >= deadline:
            return answer.error
        await asyncio.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
