"""Who may reach the admin port, and that its routes are served nowhere else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.admin.registry import ADMIN_ROUTES
from gateway.app import routes
from quire.errors import StartupError
from quire.options.admin import AdminOptions
from quire.options.gateway import GatewayOptions
from tests.support.admin_stack import AdminStack, admin_options, running_admin_stack
from tests.support.engine_process import ROOT, free_port
from tests.support.fake_router import FakeRouter
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = {"authorization": "Bearer operator"}
PATHS = [(route.path, method) for route in ADMIN_ROUTES for method in sorted(route.methods or ()) if method != "HEAD"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tokenizer_folder: Path) -> AsyncIterator[AdminStack]:
    """A stack with both client keys and operator keys."""
    async with running_admin_stack(
        tokenizer_folder, engines=1, api_key=("client",), admin=admin_options("operator", "second")
    ) as stack:
        del stack.admin.headers["authorization"]
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_stack(tokenizer_folder: Path) -> AsyncIterator[AdminStack]:
    """A stack without any keys and with the admin routes on the clients' port as well."""
    admin = AdminOptions(admin_allowed_hosts=("quire-admin.svc",))
    async with running_admin_stack(tokenizer_folder, engines=1, server_dev_mode=True, admin=admin) as stack:
        yield stack


async def test_no_admin_route_is_on_the_clients_port() -> None:
    paths = {route.path for route in routes(GatewayOptions(enable_scale_out=True, allow_runtime_lora_updating=True))}
    assert not paths & {path for path, _ in PATHS}


@pytest.mark.parametrize(("path", "method"), PATHS)
async def test_every_route_needs_an_operators_key(locked: AdminStack, path: str, method: str) -> None:
    for headers in ({}, {"authorization": "Bearer client"}, {"authorization": "Bearer operato"}, {"x-api-key": "no"}):
        answer = await locked.admin.request(method, path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    public = await locked.gateway.client.request(method, path, headers={"authorization": "Bearer client"})
    assert public.status_code == 404


async def test_each_of_the_keys_opens_it(locked: AdminStack) -> None:
    for headers in (KEY, {"authorization": "Bearer second"}, {"x-api-key": "operator"}):
        assert (await locked.admin.get("/is_paused", headers=headers)).status_code == 200
    assert (await locked.gateway.client.get("/v1/models", headers=KEY)).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["//pause", "/pause/", "/PAUSE", "/%70ause", "/v1/../pause", "/pause;x", "/health", "/livez", "/metrics", "/docs",
     "/v1/chat/completions", "/", "/%2e%2e/pause", "/pause%00"],
)  # fmt: skip
async def test_odd_spellings_lead_nowhere(locked: AdminStack, path: str) -> None:
    for method in ("GET", "POST"):
        keyless = await _raw(locked.admin_port, method, path, "")
        assert keyless == 401, path
    status = await _raw(locked.admin_port, "POST", path, "authorization: Bearer operator\r\n")
    assert status == (200 if path == "/%70ause" else 404)  # a percent-encoded path is the same path
    await locked.admin.post("/resume", headers=KEY)


async def test_methods_and_what_is_no_http(locked: AdminStack) -> None:
    for path, method in (("/sleep", "GET"), ("/is_sleeping", "POST"), ("/drain", "DELETE"), ("/workers", "PUT")):
        assert (await locked.admin.request(method, path)).status_code == 401
        answer = await locked.admin.request(method, path, headers=KEY)
        assert answer.status_code == 405
        assert answer.json()["error"]["type"] == "Method Not Allowed"
    absolute = "http://127.0.0.1/is_paused"
    assert await _raw(locked.admin_port, "GET", absolute, "") == 401


async def test_pages_that_a_browser_shows_are_not_answered(open_stack: AdminStack) -> None:
    """On both ports, foreign origins and unknown host names (DNS rebinding) get 403."""
    for client in (open_stack.admin, open_stack.gateway.client):
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"host": "evil.example"},
            {"host": "evil.quire-admin.svc"},
        ):
            answer = await client.post("/pause", headers=headers)
            assert answer.status_code == 403, headers
        for host in ("localhost:9000", "127.0.0.1", "[::1]:8000", "Quire-Admin.svc:80"):
            assert (await client.get("/is_paused", headers={"host": host})).status_code == 200
    assert not (await open_stack.ask("/is_paused", method="GET"))["is_paused"]


async def test_with_a_key_names_do_not_matter(locked: AdminStack) -> None:
    assert (await locked.admin.get("/is_paused", headers=KEY | {"host": "quire-admin.svc"})).status_code == 200
    assert (await locked.admin.get("/is_paused", headers=KEY | {"origin": "https://x.example"})).status_code == 403


async def test_the_switch_for_developers_opens_the_same_paths_to_clients(open_stack: AdminStack) -> None:
    client = open_stack.gateway.client
    assert (await client.post("/sleep?level=1")).json()["status"] == "sleeping"
    assert (await client.get("/is_sleeping")).json()["is_sleeping"] is True
    assert (await client.post("/wake_up")).json()["status"] == "awake"
    assert (await client.post("/reset_prefix_cache")).json()["success"] is True
    assert (await client.post("/collective_rpc", json={"method": "exec"})).status_code == 501


async def test_developers_routes_need_the_clients_key(tokenizer_folder: Path) -> None:
    async with running_admin_stack(tokenizer_folder, engines=1, server_dev_mode=True, api_key=("client",)) as stack:
        assert (await stack.gateway.client.post("/pause")).status_code == 401
        answer = await stack.gateway.client.get("/is_paused", headers={"authorization": "Bearer client"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("admin", "others", "wrong"),
    [
        ({"admin_port": 9000, "admin_host": "0.0.0.0"}, {"api_key": ("k",)}, "no --admin-api-key is set"),
        ({"admin_port": 8000}, {}, "is also the clients' port"),
        ({"admin_port": 9000, "admin_api_key": ("k",)}, {"api_key": ("k", "j")}, "is also one of --api-key"),
    ],
)
async def test_a_port_that_is_open_to_others_is_refused(admin: Any, others: Any, wrong: str) -> None:
    with pytest.raises(StartupError, match=wrong):
        GatewayOptions(admin=AdminOptions(**admin), **others).check()


@pytest.mark.parametrize("key", ["", " ", "key\n"])
async def test_a_key_that_no_request_can_bring_is_refused(key: str) -> None:
    for options in (GatewayOptions(api_key=("k", key)), GatewayOptions(admin=AdminOptions(admin_api_key=(key,)))):
        with pytest.raises(StartupError, match="api-key is empty or has spaces"):
            options.check()


@pytest.mark.parametrize(
    ("admin", "others"),
    [
        ({}, {}), ({"admin_port": 9000}, {}), ({"admin_host": "0.0.0.0"}, {}),
        ({"admin_port": 9000, "admin_host": "0.0.0.0", "admin_api_key": ("k",)}, {}),
        ({"admin_port": 9000, "admin_host": "0.0.0.0"}, {"insecure": True}),
    ],
)  # fmt: skip
async def test_others_are_not(admin: Any, others: Any) -> None:
    GatewayOptions(admin=AdminOptions(**admin), **others).check()


async def test_a_gateways_process_listens_on_loopback_and_ends_with_its_clients_port(tmp_path: Path) -> None:
    router = await FakeRouter().start()
    port, admin_port = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "gateway", "--port", str(port), "--admin-port", str(admin_port),
        "--router-address", router.address, "--skip-tokenizer-init", "--server-dev-mode",
        cwd=ROOT, stderr=asyncio.subprocess.PIPE, env={"QUIRE_ADMIN_API_KEY": "operator", "HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}") as client:
            async with asyncio.timeout(WAIT_SECONDS):
                while (status := await _status(client)) != 401:
                    assert status is None
                    await asyncio.sleep(0.05)
            assert (await client.get("/is_paused", headers=KEY)).status_code in (500, 501, 503)  # a fake router's
        assert _listening_on(admin_port) == ["0100007F"]
        process.terminate()
        _, said = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
        assert process.returncode == 0
        assert f"--server-dev-mode: anyone who can reach port {port} can" in said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await router.close()


def _listening_on(port: int) -> list[str]:
    """Addresses that listen on the port, in hexadecimal as the kernel lists them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [line[1].partition(":") for line in lines if line[3] == "0A"]
    return [address for address, _, number in listening if int(number, 16) == port]


async def _status(client: httpx.AsyncClient) -> int | None:
    try:
        return (await client.get("/is_paused")).status_code
    except httpx.ConnectError:
        return None


async def _raw(port: int, method: str, path: str, headers: str) -> int:
    """Sends the path unmodified and returns the response's status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: 0\r\n"
        f"{headers}\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), WAIT_SECONDS)
    writer.close()
    return int(answer.split()[1])
