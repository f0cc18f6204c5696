"""Calls of gRPC services with odd messages, and what a service may answer to them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.support.fuzzing import NUM_CASES, chances
from tests.support.random_messages import MessageFuzzer

_CONCURRENT = 4
_STREAM_SECONDS = 0.3  # after which a stream is left: it may well go on for longer
_CALL_SECONDS = 60.0
# Statuses that say that something went wrong in the service; all others blame the caller, or ask for patience.
_WRONG = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS})
_OF_THE_CLIENT = "Internal error from Core"  # grpc.aio says so itself of a call that ends while it writes


@dataclass(frozen=True)
class Method:
    """A method of a service, and valid requests to begin with.

    Attributes:
        is_session: it takes a stream of requests.
        is_stream: it answers with a stream.
    """

    name: str
    seeds: Sequence[Message]
    is_session: bool = False
    is_stream: bool = False


async def call_oddly(
    stub: Any, methods: Sequence[Method], bystander: Callable[[], Awaitable[Sequence[int]]]
) -> collections.Counter[str]:
    """Makes NUM_CASES calls, a few at a time, and asserts that the service only ever refuses; returns how often each
    method has answered with which status.

    Args:
        bystander: a request of somebody else, which must be answered alike all the time.
    """
    expected, left, wrong = list(await bystander()), iter(range(NUM_CASES)), list[str]()
    fuzzer, statuses = MessageFuzzer(chances()), collections.Counter[str]()

    async def one_after_another() -> None:
        for _ in left:
            method = fuzzer.chance.choice(methods)
            count = 3 if method.is_session else 1
            frames = [fuzzer.changed(fuzzer.chance.choice(method.seeds)) for _ in range(count)]
            code, problem = await _call(stub, method, frames)
            statuses[f"{method.name} {code.name}"] += 1
            if problem:
                wrong.append(f"{method.name}: {problem[:300]} after {[*map(str, frames)]}"[:2000])

    async def stand_by() -> None:
        while True:
            assert list(await bystander()) == expected
            await asyncio.sleep(0.02)

    with tracebacks() as found:
        standing = asyncio.create_task(stand_by())
        await asyncio.gather(*(one_after_another() for _ in range(_CONCURRENT)))
        standing.cancel()
        await asyncio.wait([standing])
    assert list(await bystander()) == expected
    assert standing.cancelled(), standing.exception()
    assert not wrong + found, "\n\n".join(wrong + found)
    return statuses


async def _call(stub: Any, method: Method, frames: Sequence[Message]) -> tuple[grpc.StatusCode, str]:
    """Returns the status, and what is wrong with it or with that of a stream in the answer."""
    has_many = method.is_session or method.is_stream
    request = _each(frames) if method.is_session else frames[0]
    call, problem = getattr(stub, method.name)(request, timeout=_STREAM_SECONDS if has_many else _CALL_SECONDS), ""
    try:
        if has_many:
            async for answer in call:
                problem = problem or _problem_in(answer)
        else:
            await call
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
        is_wrong = error.code() in _WRONG and details != _OF_THE_CLIENT
        return error.code(), f"{error.code().name} {details}" if is_wrong else problem
    return grpc.StatusCode.OK, problem


async def _each(frames: Sequence[Message]) -> AsyncIterator[Message]:
    for frame in frames:
        yield frame


def _problem_in(answer: Any) -> str:
    """Requests of a session have statuses of their own."""
    wrong = {code.value[0] for code in _WRONG}
    errors = (getattr(delta, "error", "") for delta in getattr(answer, "deltas", ()))
    return next((str(error) for error in errors if not isinstance(error, str) and error.code in wrong), "")


class _Tracebacks(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


@contextlib.contextmanager
def tracebacks() -> Iterator[list[str]]:
    """Collects what is logged with a traceback meanwhile: what nobody has thought of."""
    handler = _Tracebacks()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.found
    finally:
        logging.getLogger().removeHandler(handler)
