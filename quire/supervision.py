"""What processes of a stack may ask of the `quire serve` that started them: how many data-parallel ranks it runs.

A line of JSON each way over a socket of the supervisor's, which answers processes of its own user alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from quire.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidRequest, QuireError, Unavailable
from quire.supervised import control_path

MAX_BYTES = 2**16  # of a line
_MARGIN_SECONDS = 10.0  # beyond the time that the supervisor was given
_ERRORS: Mapping[str, type[QuireError]] = MappingProxyType(
    {error.reason: error for error in (DeadlineExceeded, FailedPrecondition, InvalidRequest, Unavailable)}
)


class ScaleRequest(msgspec.Struct, frozen=True):
    """Asks for another number of ranks; with none, how many there are.

    Attributes:
        drain_seconds: that the requests of ranks which are taken have, before they go on at others.
        seconds: for all of it.
    """

    data_parallel_size: int | None = None
    drain_seconds: float = 120.0
    seconds: float = 1800.0


class ScaleAnswer(msgspec.Struct, frozen=True):
    """How many ranks there are, and whether that is being changed; or why it cannot be."""

    data_parallel_size: int = 0
    scaling: bool = False
    reason: str = ""  # an error's; empty without one
    message: str = ""


async def ask_supervisor(request: ScaleRequest, environment: Mapping[str, str] = os.environ) -> ScaleAnswer:
    """What the supervisor answers, once it is done.

    Raises:
        FailedPrecondition: this process has no supervisor, or its stack cannot be scaled.
        InvalidRequest: there cannot be so many.
        DeadlineExceeded: the time was not enough.
        Unavailable: it is being scaled, or the supervisor is gone.
    """
    if not (path := control_path(environment)):
        raise FailedPrecondition(
            "This server was not started by `quire serve`, which alone adds and takes engines. Elsewhere whoever runs "
            "them does: `docker compose up --scale engine=N`, or the replicas of a Deployment."
        )
    try:
        async with asyncio.timeout(request.seconds + _MARGIN_SECONDS):
            answer = await _ask(path, request)
    except (OSError, EOFError, msgspec.DecodeError) as error:  # a TimeoutError is an OSError
        raise Unavailable(f"The supervisor does not answer: {error or type(error).__name__}.") from error
    if answer.reason:
        raise _ERRORS.get(answer.reason, Internal)(answer.message)
    return answer


async def _ask(path: str, request: ScaleRequest) -> ScaleAnswer:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.setblocking(False)
        await asyncio.get_running_loop().sock_connect(found, path)  # uvloop's streams take no name without a file
        reader, writer = await asyncio.open_unix_connection(sock=found, limit=MAX_BYTES)
    except BaseException:
        found.close()
        raise
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        return msgspec.json.decode(await reader.readuntil(), type=ScaleAnswer)
    finally:
        writer.close()
