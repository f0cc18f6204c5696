"""Whatever part is full answers 503 with Retry-After, never 500, and the next request is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.errors import error_response
from quire.errors import Overloaded
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc.encoder import Encoder
from tokenizer_svc.renderer import ChatRenderer

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 2})
COMPLETION = ("/v1/completions", {"prompt": "A", "max_tokens": 2})
ECHO = ("/v1/completions", {"prompt": [65], "max_tokens": 2, "echo": True})
MAX_CONNECTIONS = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    options = {"max_connections": MAX_CONNECTIONS}
    async with running_gateway(tokenizer_folder, router_options={"max_inflight_requests": 1}, **options) as running:
        yield running
        assert running.context.pipeline.num_live == 0


async def overloaded(stack: GatewayStack, path: str, body: dict[str, Any]) -> str:
    """The error message of the refusal, the same for streaming and non-streaming requests."""
    messages = set()
    streams = ({}, {"stream": True}) if path.startswith("/v1") else ({},)
    for more in streams:
        response = await stack.post(path, body | more)
        assert (response.status_code, response.headers.get("retry-after") in ("1", "2")) == (503, True), response.text
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)
        messages.add(error["message"])
    (message,) = messages
    return str(message)


async def test_clients_are_told_different_times() -> None:
    """No sooner than there may be room, and not all of them at once."""
    scope = {"type": "http", "path": "/v1/completions", "raw_path": b"/v1/completions", "root_path": "", "headers": []}
    error = Overloaded("Full.", retry_after_seconds=30)
    told = {int(error_response(error, scope).headers["retry-after"]) for _ in range(50)}
    assert len(told) > 5
    assert 30 <= min(told) <= max(told) <= 60


@contextlib.contextmanager
def full(owner: Any, name: str) -> Any:
    """Makes a function raise Overloaded until the context ends."""

    async def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Overloaded("Full.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, refuse)
        yield


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT, ("/tokenize", {"prompt": "A"})])
async def test_the_encoder_is_full(stack: GatewayStack, path: str, body: dict[str, Any]) -> None:
    with full(Encoder, "encode"):
        assert await overloaded(stack, path, body) == "Full."
    assert (await stack.post(path, body)).status_code == 200


async def test_the_renderer_is_full(stack: GatewayStack) -> None:
    with full(ChatRenderer, "render"):
        assert await overloaded(stack, *CHAT) == "Full."
        messages = await stack.post("/v1/messages", CHAT[1])
        assert (messages.status_code, messages.json()["error"]["type"]) == (529, "overloaded_error")
        assert messages.headers["retry-after"] in ("1", "2")
    assert (await stack.post(*CHAT)).status_code == 200


@pytest.mark.parametrize(("path", "body"), [ECHO, ("/detokenize", {"tokens": [65]})])
async def test_decoding_is_full(stack: GatewayStack, path: str, body: dict[str, Any]) -> None:
    with full(type(stack.context.tokenizer), "decode"):
        assert await overloaded(stack, path, body) == "Full."
    assert (await stack.post(path, body)).status_code == 200


async def test_the_gateways_threads_are_full(stack: GatewayStack) -> None:
    with full(stack.context.large_requests, "run"):
        assert await overloaded(stack, "/v1/completions", {"prompt": [65] * 30_000}) == "Full."
    assert (await stack.post(*COMPLETION)).status_code == 200


async def test_the_router_is_full(stack: GatewayStack) -> None:
    holding = asyncio.create_task(stack.post("/v1/completions", {"prompt": "A", "max_tokens": 4000}))
    await eventually(lambda: stack.engine.live, "the request does not reach the engine")
    assert "--max-inflight-requests" in await overloaded(stack, *COMPLETION)
    holding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await holding
    await eventually(lambda: not stack.engine.live, "the request is not aborted")
    assert (await stack.post(*COMPLETION)).status_code == 200


async def test_the_memory_is_short(stack: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what ends requests, and what watches the server, gets an answer."""
    guard = stack.context.memory
    with monkeypatch.context() as patch:
        patch.setattr(guard, "_used", lambda: 0.96)
        guard.look()
        assert "short of memory" in await overloaded(stack, *COMPLETION)
        health = await stack.client.get("/health")
        assert (health.status_code, "short of memory" in health.text) == (503, True)
        assert (await stack.client.get("/livez")).status_code == 200
        assert (await stack.post("/inference/v1/abort_requests", {"request_ids": ["x"]})).status_code != 503
        assert "quire_gateway_memory_refusals_total 2.0" in (await stack.client.get("/metrics")).text
    guard.look()
    assert (await stack.post(*COMPLETION)).status_code == 200


async def test_as_many_connections_as_are_taken(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, max_connections=1) as stack:
        await stack.complete()


async def test_more_connections_than_are_taken(stack: GatewayStack) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(MAX_CONNECTIONS)]
    try:
        assert "--max-connections" in await overloaded(stack, *COMPLETION)
        assert (await stack.client.get("/livez")).status_code == 200
    finally:
        for _, writer in connections:
            writer.close()
    await eventually(lambda: stack.context.ready, "not ready")
    async with asyncio.timeout(WAIT_SECONDS):
        while (await stack.post(*COMPLETION)).status_code != 200:
            await asyncio.sleep(0.05)
