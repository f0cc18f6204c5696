"""Middleware supplied by an operator (`--middleware`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.middleware.of_users import middleware_of
from quire.errors import StartupError
from tests.support.gateway_stack import running_gateway

HERE = __name__


class Naming:
    """Adds a header to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-named", b"yes")]
            await send(message)

        await self._app(scope, receive, named)


class Retelling:
    """Rewrites the events of a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def retold(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = message["body"].replace(b"text_completion", b"retold")
            await send(message)

        await self._app(scope, receive, retold)


async def refuse_versions(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return PlainTextResponse("no", 418) if request.url.path == "/version" else await call_next(request)


@pytest.mark.asyncio
async def test_classes_and_functions_stand_behind_the_key(tokenizer_folder: Path) -> None:
    chosen = (f"{HERE}.Naming", f"{HERE}.refuse_versions")
    async with running_gateway(tokenizer_folder, middleware=chosen, api_key=("key",)) as stack:
        refused = await stack.client.get("/version")
        assert refused.status_code == 401 and "x-named" not in refused.headers
        stack.client.headers["authorization"] = "Bearer key"
        assert (await stack.client.get("/version")).status_code == 418
        assert (await stack.client.get("/v1/models")).headers["x-named"] == "yes"
        body = {"model": "fake", "prompt": "A", "max_tokens": 3}
        assert len(await stack.events("/v1/completions", body)) >= 2


@pytest.mark.asyncio
async def test_they_see_each_piece_of_a_stream(tokenizer_folder: Path) -> None:
    body = {"model": "fake", "prompt": "A", "max_tokens": 20}
    async with running_gateway(tokenizer_folder, middleware=(f"{HERE}.Retelling",)) as stack:
        events = await stack.events("/v1/completions", body)
    assert {event["object"] for event in events[:-1]} == {"retold"}


@pytest.mark.parametrize("path", ["nowhere.Name", f"{HERE}.Nothing", f"{HERE}.HERE", "name", ""])
def test_what_is_none_ends_the_start(path: str) -> None:
    with pytest.raises(StartupError, match="--middleware"):
        middleware_of(path)
