"""A gateway process told to stop ends every request with an answer, so no client has to guess."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from quire.rpc.server import GrpcServer
from tests.support.engine_process import ROOT, free_port
from tests.support.fake_router import FakeRouter
from tests.support.signals import is_pending
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = {"prompt": "A", "max_tokens": 4000}


@pytest_asyncio.fixture(loop_scope="module")
async def router() -> AsyncIterator[FakeRouter]:
    """A router that gives each generation two tokens and then holds it."""
    router = await FakeRouter().start()
    router.state.hold = 2
    yield router
    await router.close()


async def start(port: int, router: FakeRouter, tokenizer: GrpcServer, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "gateway", "--port", str(port), "--router-address", router.address,
        "--tokenizer-address", f"127.0.0.1:{tokenizer.port}", *arguments, cwd=ROOT,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def gateway_process(
    router: FakeRouter, tokenizer: GrpcServer, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """A gateway process and a client of it, once the gateway is ready."""
    port = free_port()
    process = await start(port, router, tokenizer, *arguments)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
            async with asyncio.timeout(WAIT_SECONDS):
                while not await _is_ready(client):
                    await asyncio.sleep(0.05)
            yield process, client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.ConnectError:
        return False


async def stream(client: httpx.AsyncClient, lines: list[str]) -> int:
    """Reads a stream into `lines`; returns its status."""
    async with client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
        async for line in response.aiter_lines():
            lines.append(line)  # noqa: PERF401  (the test looks at them as they come)
        return response.status_code


@pytest.mark.parametrize(
    ("arguments", "signals"),
    [
        (("--drain-timeout-seconds", "0.5"), (signal.SIGTERM,)),
        ((), (signal.SIGINT, signal.SIGINT)),
        ((), (signal.SIGTERM, signal.SIGINT)),
    ],
)
async def test_what_is_cut_says_so(
    router: FakeRouter, tokenizer: GrpcServer, arguments: tuple[str, ...], signals: tuple[signal.Signals, ...]
) -> None:
    async with gateway_process(router, tokenizer, *arguments) as (process, client):
        lines: list[str] = []
        streaming = asyncio.create_task(stream(client, lines))
        await eventually(lambda: router.holding and lines, "no tokens come")
        router.state.hold = 0  # a stream without response headers does not count as a stream yet
        waiting = [
            asyncio.create_task(client.post("/v1/completions", json=ENDLESS | {"stream": streams}))
            for streams in (False, True)
        ]
        await eventually(lambda: len(router.live) == 3, "the requests do not reach the router")
        for number in signals:
            process.send_signal(number)
            await eventually(lambda number=number: not is_pending(process.pid, number))  # type: ignore[misc]
        assert await asyncio.wait_for(streaming, WAIT_SECONDS) == 200
        assert lines[-2:] == ["data: [DONE]", ""]
        check_error(json.loads(lines[-4].removeprefix("data: ")))
        for answer in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS):
            assert (answer.status_code, answer.headers["retry-after"] in ("1", "2")) == (503, True)
            check_error(answer.json())
        assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0


async def test_while_load_balancers_notice_it_serves_on(router: FakeRouter, tokenizer: GrpcServer) -> None:
    router.state.hold = 0
    async with gateway_process(router, tokenizer, "--drain-settle-seconds", "1.5") as (process, client):
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=client.base_url, timeout=WAIT_SECONDS) as another:
            assert (await another.get("/v1/models")).status_code == 200
        assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0


def check_error(body: dict[str, Any]) -> None:
    assert (body["error"]["code"], body["error"]["type"]) == (503, "ServiceUnavailableError")
    assert "stopping" in body["error"]["message"]


async def test_a_gateway_that_is_stopped_as_it_begins_to_listen_ends_as_ever(
    router: FakeRouter, tokenizer: GrpcServer
) -> None:
    port = free_port()
    process = await start(port, router, tokenizer)
    async with asyncio.timeout(WAIT_SECONDS):
        while not await _listens(port):
            await asyncio.sleep(0.001)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_a_body_that_has_not_come_is_not_waited_for(router: FakeRouter, tokenizer: GrpcServer) -> None:
    async with gateway_process(router, tokenizer, "--drain-timeout-seconds", "0") as (process, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n"
            b"expect: 100-continue\r\n\r\n{"
        )
        await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), WAIT_SECONDS)  # it waits for the rest
        process.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(reader.read(), WAIT_SECONDS)
        writer.close()
        assert not answer or answer.startswith(b"HTTP/1.1 503")
        assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0


async def test_a_stream_that_ends_in_time_is_whole(router: FakeRouter, tokenizer: GrpcServer) -> None:
    async with gateway_process(router, tokenizer) as (process, client):
        lines: list[str] = []
        streaming = asyncio.create_task(stream(client, lines))
        await eventually(lambda: router.holding and lines, "no tokens come")
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: not is_pending(process.pid, signal.SIGTERM))
        for live in router.live:
            live.hold = None
        assert await asyncio.wait_for(streaming, WAIT_SECONDS) == 200
        assert '"finish_reason":"length"' in lines[-4]
        assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0
