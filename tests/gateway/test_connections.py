"""Clients that disconnect, stall or flood; services that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.main import make_server
from gateway.services import texts, tokenizers
from quire.errors import Overloaded, Unavailable
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/completions"
ENDLESS = {"model": "fake", "prompt": "A", "max_tokens": 4000}
# A stream of a second or more on the engine of `strict`, whose gateway allows 0.3 s for headers and bodies.
LONG = {"model": "fake", "prompt": "A", "max_tokens": 100, "stream": True}
# An answer of four megabytes, more than the buffers of a connection hold.
LARGE = {"model": "fake", "prompt": ["A" * 4000] * 10, "n": 100, "echo": True, "max_tokens": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    """A gateway with short deadlines, and an engine slow enough for clients to disconnect midway."""
    options = {"header_timeout_seconds": 0.3, "body_timeout_seconds": 0.3}
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.01), **options) as stack:
        yield stack
        assert stack.context.pipeline.num_live == 0


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw TCP connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield reader, writer
    finally:
        writer.close()


async def send(port: int, data: bytes) -> bytes:
    """Everything the server answers to raw bytes until it closes the connection."""
    async with connection(port) as (reader, writer):
        writer.write(data)
        return await reader.read()


def request(body: dict[str, Any], **headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = {"host": "x", "content-type": "application/json", "content-length": str(len(content))} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + content


def chunked(**headers: str) -> bytes:
    """A request for one token in chunked encoding, without the final empty chunk."""
    head, _, body = request({"model": "fake", "prompt": "A", "max_tokens": 1}, **headers).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    head = b"\r\n".join([*lines, b"transfer-encoding: chunked"])
    return b"%b\r\n\r\n%x\r\n%b\r\n" % (head, len(body), body)


def has_connection(port: int, client: socket.socket) -> bool:
    """Whether the server at this port still has the client's connection open."""
    ports = f":{port:04X}", f":{client.getsockname()[1]:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [line[3] for line in lines if line[1].endswith(ports[0]) and line[2].endswith(ports[1])]
    return found == ["01"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_frees_its_request(strict: GatewayStack, stream: bool) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    writer.write(request(ENDLESS | {"stream": stream}))
    await eventually(lambda: strict.engine.live, "the request does not reach the engine")
    aborted = len(strict.engine.record.aborted)
    writer.close()
    await eventually(lambda: len(strict.engine.record.aborted) == aborted + 1, "not aborted")
    await eventually(lambda: not strict.context.pipeline.num_live, "not forgotten")


async def test_a_client_that_goes_with_a_request_in_line_frees_the_one_that_runs(strict: GatewayStack) -> None:
    aborted = len(strict.engine.record.aborted)
    async with connection(strict.port) as (reader, writer):
        writer.write(request(ENDLESS | {"stream": True}) + request(ENDLESS))
        await reader.readuntil(b"data: ")
    await eventually(lambda: len(strict.engine.record.aborted) == aborted + 1, "not aborted")
    await eventually(lambda: not strict.context.pipeline.num_live, "not forgotten")
    assert len(strict.engine.record.aborted) == aborted + 1


async def test_a_client_that_goes_while_it_sends_a_body_made_the_error(
    strict: GatewayStack, caplog: pytest.LogCaptureFixture
) -> None:
    def ended() -> dict[str, float]:
        (requests,) = [found for found in strict.context.http_statistics.collect() if found.name == "http_requests"]
        return {each.labels["status"]: each.value for each in requests.samples if each.labels["handler"] == PATH}

    before = ended()
    async with connection(strict.port) as (_, writer):
        writer.write(request(ENDLESS)[:-5])
        await writer.drain()
    await eventually(lambda: ended() != before, "the request does not end")
    assert ended() == before | {"4xx": before.get("4xx", 0) + 1}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_idle_connections_are_the_clients_to_close(strict: GatewayStack) -> None:
    """If the server closed idle connections first, some would close just as their clients send a request."""
    assert make_server(strict.context).config.timeout_keep_alive > 60


async def test_slow_headers(strict: GatewayStack) -> None:
    answer = await send(strict.port, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"headers" in answer


async def test_a_slow_body(strict: GatewayStack) -> None:
    answer = await send(strict.port, request(ENDLESS)[:-5])
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body" in answer


async def test_a_silent_connection_is_closed(strict: GatewayStack) -> None:
    assert (await send(strict.port, b"")).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_line_end_after_the_body_is_ignored(strict: GatewayStack, version: bytes) -> None:
    """RFC 9112 requires it, because old clients send one. The stream outlasts the header timeout several times over."""
    async with connection(strict.port) as (reader, writer):
        writer.write(request(LONG, connection="close").replace(b"HTTP/1.1", version))
        answer = await reader.readuntil(b"data: ")
        writer.write(b"\r\n")
        answer += await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"data: [DONE]" in answer


async def test_the_next_request_may_come_slowly_while_an_answer_runs(strict: GatewayStack) -> None:
    second = request({"model": "fake", "prompt": [1, 2], "max_tokens": 3}, connection="close")
    started = len(strict.engine.record.started)
    async with connection(strict.port) as (reader, writer):
        writer.write(request(LONG) + second[:-4])  # waits for its turn, and then for the rest of its body
        whole = await reader.readuntil(b"data: [DONE]")
        assert len(strict.engine.record.started) == started + 1
        writer.write(second[-4:])
        rest = await reader.read()
    assert whole.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 200" in rest
    assert b'"finish_reason":"length"' in rest


async def test_a_body_that_waited_for_its_turn_has_its_time_then(strict: GatewayStack) -> None:
    answer = await send(strict.port, request(LONG) + request(LONG)[:-4])
    head, stream, refusal = answer.split(b"HTTP/1.1 ")
    assert (head, stream[:3], refusal[:3]) == (b"", b"200", b"408")
    assert b"data: [DONE]" in stream


@pytest.mark.parametrize("first", [b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_line_ends_alone_do_not_keep_a_connection(strict: GatewayStack, first: bytes) -> None:
    async with connection(strict.port) as (reader, writer):
        answer = asyncio.create_task(reader.read())
        writer.write(first)
        while not answer.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
    assert b"HTTP/1.1 408" in await answer


async def test_headers_that_are_too_large(strict: GatewayStack) -> None:
    for data in (
        request(ENDLESS, junk="x" * 70_000),
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    ):
        answer = await send(strict.port, data)
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer[:200]


@pytest.mark.parametrize("size", [70, 200_000], ids=["many", "one"])
async def test_what_comes_behind_a_body_is_limited_too(strict: GatewayStack, size: int) -> None:
    trailer = b"x: " + b"y" * size + b"\r\n"
    async with connection(strict.port) as (reader, writer):
        writer.write(chunked() + b"0\r\n")
        answer = asyncio.create_task(reader.read())
        for _ in range(200_000 // size):
            writer.write(trailer)
            await asyncio.sleep(0)
        assert (await answer).startswith(b"HTTP/1.1 431")


async def test_what_comes_behind_a_body_is_no_header(strict: GatewayStack) -> None:
    """A proxy that strips or sets headers does not look at trailers."""
    answer = await send(strict.port, chunked(connection="close") + b"0\r\nx-tenant: no name!\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    answer = await send(strict.port, chunked(**{"connection": "close", "x-tenant": "no name!"}) + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("path", ["/v1/completions", "/page/page.js"])
async def test_a_client_that_does_not_read_is_left(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The connection is closed for a whole answer, a stream, and pipelined requests."""
    monkeypatch.setattr("gateway.http_protocol._STALL_SECONDS", 0.2)
    data = request(LARGE) if path == "/v1/completions" else f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * 1000
    loop = asyncio.get_running_loop()
    async with running_gateway(tokenizer_folder) as stack:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", stack.port))
            await loop.sock_sendall(client, data)
            await eventually(lambda: not has_connection(stack.port, client), "the connection stays")
        assert (await stack.client.get("/livez")).status_code == 200


async def test_a_client_that_reads_slowly_gets_all(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http_protocol._STALL_SECONDS", 0.5)
    loop, answer = asyncio.get_running_loop(), b""
    async with running_gateway(tokenizer_folder) as stack:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", stack.port))
            await loop.sock_sendall(client, request(LARGE, connection="close"))
            while piece := await loop.sock_recv(client, 2**16):
                answer += piece
                await asyncio.sleep(0.03)  # a megabyte takes a second or two
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(json.loads(content)["choices"]) == 1000


async def test_a_client_that_goes_on_sending_reads_why_it_is_refused(strict: GatewayStack) -> None:
    async with connection(strict.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 2**22)
        assert (await reader.read()).startswith(b"HTTP/1.1 431")


async def test_limits_of_headers_can_be_set(tokenizer_folder: Path) -> None:
    options = {"h11_max_header_count": 8, "h11_max_incomplete_event_size": 2000}
    async with running_gateway(tokenizer_folder, **options) as stack:
        for lines, words in ((b"a: b\r\n" * 9, b"--h11-max-header-count"), (b"a: " + b"b" * 3000, b"larger than 2000")):
            answer = await send(stack.port, b"GET /livez HTTP/1.1\r\n" + lines + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 431") and words in answer
        assert (await stack.client.get("/livez")).status_code == 200


async def test_what_is_no_http(strict: GatewayStack) -> None:
    assert (await send(strict.port, b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_two_lengths_are_refused(strict: GatewayStack) -> None:
    data = request(ENDLESS).replace(b"host: x\r\n", b"host: x\r\ntransfer-encoding: chunked\r\n")
    assert (await send(strict.port, data)).startswith(b"HTTP/1.1 400")


@pytest.mark.slow
async def test_an_engine_that_refuses(strict: GatewayStack) -> None:
    for error, status in ((Overloaded("Full."), 503), (Unavailable("Leaving."), 503)):
        strict.engine.options = FakeOptions(start_error=error)
        for stream in (False, True):
            response = await strict.post("/v1/completions", ENDLESS | {"stream": stream})
            assert response.status_code == status
            assert response.headers["retry-after"]
            assert response.json()["error"]["type"] == "ServiceUnavailableError"
    strict.engine.options = FakeOptions(step_seconds=0.01)


@pytest.mark.slow
async def test_an_engine_that_dies_in_the_middle_of_a_stream(tokenizer_folder: Path) -> None:
    """The stream ends with 503 when no other engine appears within the queueing time."""
    patience = {"max_queue_seconds": 1.0}
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.02), patience) as stack:
        async with stack.client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            await anext(lines)
            await stack.engine.close()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == 503
        await eventually(lambda: not stack.context.ready, "the gateway does not notice")
        assert (await stack.client.get("/health")).status_code == 503
        response = await stack.post("/v1/completions", ENDLESS)
        assert response.status_code == 503
        assert "no engine worker is ready" in response.json()["error"]["message"].lower()


@pytest.mark.slow
@pytest.mark.parametrize("service", ["router", "tokenizer"])
async def test_a_service_that_vanishes(tokenizer_folder: Path, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "RESUME_SECONDS", 0.3)
    monkeypatch.setattr(tokenizers, "CALL_SECONDS", 0.3)
    monkeypatch.setattr("gateway.services.router_streams.ROUTER_SECONDS", 1.0)
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.02)) as stack:
        waiting = asyncio.create_task(stack.post("/v1/completions", ENDLESS))
        await eventually(lambda: stack.engine.live, "the request does not reach the engine")
        await (stack.router.close() if service == "router" else stack.tokenizer.server.stop(None))
        assert (await waiting).status_code == 503
        health = await stack.client.get("/health")
        assert health.status_code == 503
        assert service in health.json()["error"]["message"]
        assert (await stack.client.get("/livez")).status_code == 200
        response = await stack.post("/v1/completions", ENDLESS)
        assert response.status_code == 503
        assert response.json()["error"]["message"]


async def test_a_server_that_stops_says_so(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder) as stack:
        stack.context.draining = True
        response = await stack.client.get("/health")
        assert response.status_code == 503
        assert "stopping" in response.json()["error"]["message"]
