"""Commands to a supervisor over its own socket."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from quire.errors import FailedPrecondition, InvalidRequest, QuireError, Unavailable
from quire.serve.control import control_socket
from quire.supervised import control_path, supervised_environment
from quire.supervision import ScaleAnswer, ScaleRequest, ask_supervisor
from tests.support.waiting import WAIT_SECONDS


def fresh_environment() -> dict[str, str]:
    return dict(supervised_environment("gateway", f"@quire-test-{secrets.token_hex(8)}"))


def answering(error: QuireError | None = None) -> Callable[[ScaleRequest], Awaitable[ScaleAnswer]]:
    async def answer(request: ScaleRequest) -> ScaleAnswer:
        if error is not None:
            raise error
        return ScaleAnswer(request.data_parallel_size or 7)

    return answer


async def test_an_order_and_a_question() -> None:
    environment = fresh_environment()
    async with control_socket(control_path(environment), answering()):
        assert await ask_supervisor(ScaleRequest(3), environment) == ScaleAnswer(3)
        assert await ask_supervisor(ScaleRequest(), environment) == ScaleAnswer(7)
    with pytest.raises(Unavailable, match="does not answer"):
        await ask_supervisor(ScaleRequest(), environment)


async def test_the_gateway_asks_in_the_loop_that_it_runs_in() -> None:
    environment = fresh_environment()
    async with control_socket(control_path(environment), answering()):
        question = ask_supervisor(ScaleRequest(), environment)
        assert await asyncio.to_thread(uvloop.run, question) == ScaleAnswer(7)


@pytest.mark.parametrize("error", [InvalidRequest("no"), FailedPrecondition("no"), Unavailable("no")])
async def test_errors_keep_their_kind(error: QuireError) -> None:
    environment = fresh_environment()
    async with control_socket(control_path(environment), answering(error)):
        with pytest.raises(type(error), match=r"^no$"):
            await ask_supervisor(ScaleRequest(3), environment)


async def test_who_asks_is_not_left_waiting_by_a_bug_or_an_end() -> None:
    environment, asked = fresh_environment(), asyncio.Event()

    async def fail(request: ScaleRequest) -> ScaleAnswer:
        raise ZeroDivisionError

    async def wait(request: ScaleRequest) -> ScaleAnswer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with control_socket(control_path(environment), fail):
        with pytest.raises(Unavailable, match="does not answer"):
            await asyncio.wait_for(ask_supervisor(ScaleRequest(3), environment), WAIT_SECONDS)
    async with control_socket(control_path(environment), wait):
        waiting = asyncio.create_task(ask_supervisor(ScaleRequest(3), environment))
        await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
    with pytest.raises(Unavailable, match="does not answer"):
        await asyncio.wait_for(waiting, WAIT_SECONDS)


@pytest.mark.parametrize("line", [b"{}x\n", b'{"data_parallel_size": "two"}\n', b"[" * 1000 + b"\n", b"\xff\n"])
async def test_what_is_no_order_is_refused(line: bytes) -> None:
    path = control_path(fresh_environment())
    async with control_socket(path, answering()):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        assert b"INVALID_REQUEST" in await reader.readuntil()
        writer.close()
