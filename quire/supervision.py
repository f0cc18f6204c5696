"""What a stack's processes may ask of the `quire serve` that started them: the number of data-parallel ranks, or a
change of it.

Request and answer are a line of JSON each, over a socket of the supervisor's that answers only its own user's
processes.
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

MAX_BYTES = 2**16  # per line
_MARGIN_SECONDS = 10.0  # added to the time that the supervisor was given
_ERRORS: Mapping[str, type[QuireError]] = MappingProxyType(
    {error.reason: error for error in (DeadlineExceeded, FailedPrecondition, InvalidRequest, Unavailable)}
)


class ScaleRequest(msgspec.Struct, frozen=True):
    """Asks for a new number of ranks; None asks how many there are.

    Attributes:
        drain_seconds: time for the requests on removed ranks to finish before they are moved to others.
        seconds: time limit for the whole change.
    """

    data_parallel_size: int | None = None
    drain_seconds: float = 120.0
    seconds: float = 1800.0


class ScaleAnswer(msgspec.Struct, frozen=True):
    """The number of ranks, and whether it is being changed; or why it cannot be."""

    data_parallel_size: int = 0
    scaling: bool = False
    reason: str = ""  # an error's reason; empty without an error
    message: str = ""


async def ask_supervisor(request: ScaleRequest, environment: Mapping[str, str] = os.environ) -> ScaleAnswer:
    """Sends a request to the supervisor; returns its answer once it is done.

    Raises:
        FailedPrecondition: this process has no supervisor, or its stack cannot be scaled.
        InvalidRequest: this number of ranks is impossible.
        DeadlineExceeded: the change took too long.
        Unavailable: a change is under way, or the supervisor is gone.
    """
    if not (path := control_path(environment)):
        raise FailedPrecondition(
            "This server was not started by `quire serve`, so it cannot add or remove engines. Use what started "
            "them: `docker compose up --scale engine=N`, or the replicas of a Deployment."
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
        await asyncio.get_running_loop().sock_connect(found, path)  # uvloop's streams do not accept abstract names
        reader, writer = await asyncio.open_unix_connection(sock=found, limit=MAX_BYTES)
    except BaseException:
        found.close()
        raise
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        return msgspec.json.decode(await reader.readuntil(), type=ScaleAnswer)
    finally:
        writer.close()
