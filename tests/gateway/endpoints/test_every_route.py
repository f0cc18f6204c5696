"""Every route of the application: without a key, with a wrong key, under other spellings and with other methods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio
from starlette.routing import Match, Route, WebSocketRoute

from gateway.admin.registry import admin_routes
from gateway.app import create_admin_app, create_app, routes
from gateway.main import make_admin_server
from gateway.middleware.authentication import PUBLIC_PATHS
from gateway.page_assets import PAGE_ASSETS
from quire.options.admin import AdminOptions
from quire.options.gateway import GatewayOptions
from tests.support.gateway_stack import GatewayStack, running_gateway, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = {"authorization": "Bearer key-one"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ASSETS = {"/page/{asset}": next(iter(PAGE_ASSETS)), "/docs/{asset}": "docs.js"}
PARAMETERS = {"{response_id}": "resp_x", "{model:path}": "fake"}
# Statuses that an acceptable request without a body may get.
ANSWERS = (200, 400, 403, 404, 426, 501, 503)


def all_switches() -> dict[str, bool]:
    """All options that add routes, found by trying each."""
    plain = GatewayOptions()
    names = [field.name for field in fields(GatewayOptions) if isinstance(getattr(plain, field.name), bool)]
    return {name: True for name in names if len(routes(replace(plain, **{name: True}))) > len(routes(plain))}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """One connection that sends paths unmodified."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, method: str, path: str, headers: Mapping[str, str] = KEY) -> Answer:
        lines = [f"{method} {path} HTTP/1.1", "host: test", *(f"{name}: {text}" for name, text in headers.items())]
        self._writer.write(("\r\n".join([*lines, "content-length: 0"]) + "\r\n\r\n").encode())
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 60)).decode().split("\r\n")
        told = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self._reader.readexactly(int(told.get("content-length", "0")))
        return Answer(int(head[0].split(" ")[1]), told, body)


@dataclass(frozen=True)
class Served:
    """The server, its routes and a connection to it."""

    connection: Connection
    table: list[Route]
    public: frozenset[bytes]  # paths that need no key

    @property
    def paths(self) -> list[tuple[str, str]]:
        """(path, method) of every route and method except HEAD."""
        found = [(route.path, route.methods or set()) for route in self.table]
        return [(filled(path), method) for path, methods in found for method in sorted(methods - {"HEAD"})]

    @property
    def harmless(self) -> list[tuple[str, str]]:
        """The paths that change no worker; the others have tests of their own."""
        every = admin_routes(has_keys=True, allowed_hosts=())
        changing = {(route.path, method) for route in every for method in route.methods or ()}
        return [pair for pair in self.paths if pair not in changing]

    def methods_of(self, path: str) -> set[str]:
        """All methods that the path accepts."""
        scope = {"type": "http", "path": path, "method": "GET"}
        matching = [route for route in self.table if route.matches(scope)[0] is not Match.NONE]
        return {method for route in matching for method in route.methods or ()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    keys = ("key-one", "key-two")
    options = {"api_key": keys, "admin": AdminOptions(admin_api_key=keys), **all_switches()}
    async with running_gateway(tokenizer_folder, **options) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin_port(stack: GatewayStack) -> AsyncIterator[int]:
    async with serving(make_admin_server(stack.context)) as port:
        yield port


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["clients", "admin"])
async def served(request: pytest.FixtureRequest, stack: GatewayStack, admin_port: int) -> AsyncIterator[Served]:
    is_admin = request.param == "admin"
    app = (create_admin_app if is_admin else create_app)(stack.context)
    table = [route for route in app.routes if isinstance(route, Route)]
    # A route of another type would need a test of its own, as WebSockets have in test_realtime.py.
    assert all(isinstance(route, Route | WebSocketRoute) for route in app.routes)
    reader, writer = await asyncio.open_connection("127.0.0.1", admin_port if is_admin else stack.port)
    yield Served(Connection(reader, writer), table, frozenset() if is_admin else PUBLIC_PATHS)
    writer.close()
    await writer.wait_closed()


@pytest.fixture(autouse=True)
def a_machine_that_is_quickly_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.endpoints.server_info.collect", lambda names: {})


def filled(path: str) -> str:
    """The route's path with its parameters filled in."""
    if path in ASSETS:
        return path.replace("{asset}", ASSETS[path])
    for parameter, value in PARAMETERS.items():
        path = path.replace(parameter, value)
    assert "{" not in path, f"PARAMETERS needs a value for {path}"
    return path


def expect_shape(answer: Answer, path: str, where: str) -> None:
    """Asserts that an error has the shape of the API that the path belongs to."""
    body: Any = json.loads(answer.body)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"}), where
    elif path.startswith("/cohere/"):
        assert set(body) == {"message", "id"} and body["message"] and body["id"], where
        return
    else:
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, where
        assert body["error"]["code"] == answer.status, where
    assert body["error"]["message"] and body["error"]["type"], where


async def expect_locked(served: Served, method: str, path: str, headers: Mapping[str, str]) -> None:
    answer = await served.connection.ask(method, path, headers)
    where = f"{method} {path} with {dict(headers)}"
    assert answer.status == 401, where
    assert answer.headers["www-authenticate"] == "bearer", where
    expect_shape(answer, path, where)
    if path.startswith("/cohere/"):  # whose errors have no type
        return
    assert json.loads(answer.body)["error"]["type"].lower().startswith("authentication"), where


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic key-one"}, {"x-api-key": "key-on"}],
    ids=["none", "wrong", "other scheme", "x-api-key"],
)
async def test_without_the_key_nothing_but_probes_answers(served: Served, headers: Mapping[str, str]) -> None:
    for path, method in served.paths:
        if path.encode() in served.public:
            assert (await served.connection.ask(method, path, headers)).status == 200, path
        else:
            await expect_locked(served, method, path, headers)


async def test_with_a_key_each_answers_as_its_api_does(served: Served) -> None:
    for path, method in served.harmless:
        answer = await served.connection.ask(method, path)
        assert answer.status in ANSWERS, f"{method} {path}: {answer}"
        if answer.status != 200:
            expect_shape(answer, path, f"{method} {path}")


def spellings_of(path: str) -> set[str]:
    """Other spellings of a path, which some servers and proxies treat as equivalent."""
    inner = path.rstrip("/").rpartition("/")[0]
    last = path[len(inner) :]
    found = {
        f"/{path}", path.replace("/", "//"), f"{path}/", f"{path}//", path.upper(), f"{inner}/.{last}", f"{path}/.",
        f"{path}/..{last}", f"/health/..{path}", f"/health/%2e%2e{path}", f"{path}%2f", f"{path};x", f"{path}%00",
        f"{path}%20", path.replace("/", "/%2f"), path.replace("/", "\\"), f"/.{path}",
    }  # fmt: skip
    return {spelled for spelled in found if spelled.startswith("/")} - {path}


async def test_other_spellings_are_no_way_around_the_key(served: Served) -> None:
    for path, method in served.paths:
        for spelled in (*spellings_of(path), encoded(path)):
            if spelled.encode() not in served.public:
                await expect_locked(served, method, spelled, {})


async def test_other_spellings_are_other_paths(served: Served) -> None:
    known = {path for path, _ in served.paths}
    for path, method in served.paths:
        for spelled in spellings_of(path) - known:
            answer = await served.connection.ask(method, spelled)
            taken = served.methods_of(unquote(spelled))  # a path parameter accepts any text
            assert answer.status == (405 if taken and method not in taken else 404), f"{method} {spelled}: {answer}"
            expect_shape(answer, spelled, spelled)


def encoded(path: str) -> str:
    """The same path with its first letter percent-encoded."""
    return f"/%{ord(path[1]):02x}{path[2:]}" if len(path) > 1 else path


async def test_an_encoded_letter_is_the_letter(served: Served) -> None:
    for path, method in served.harmless:
        plain, other = [await served.connection.ask(method, each) for each in (path, encoded(path))]
        assert plain.status == other.status, path


async def test_a_method_that_a_path_does_not_take_is_named(served: Served) -> None:
    for path, _ in served.paths:
        taken = served.methods_of(path)
        for method in set(METHODS) - taken:
            answer = await served.connection.ask(method, path)
            assert answer.status == 405, f"{method} {path}: {answer}"
            assert answer.headers["allow"], path
            expect_shape(answer, path, f"{method} {path}")
            if path.encode() not in served.public:
                await expect_locked(served, method, path, {})
