"""The containers' health check, against real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from quire import healthcheck
from quire.healthcheck import check_grpc, check_http
from quire.metrics import new_registry
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.server import GrpcServer
from tests.support.engine_process import free_port
from tests.support.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


async def test_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthcheck, "_SECONDS", WAIT_SECONDS)  # so that a busy machine does not fail the check
    server = GrpcServer("router", "quire.v1.RouterService", GrpcServerOptions(), RpcSecurityOptions(), new_registry())
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        assert await check_grpc(address, "") == f"{address}: NOT_SERVING"
        await server.set_serving(True)
        assert await check_grpc(address, "") == ""
        assert await check_grpc(address, "quire.v1.RouterService") == ""
        assert address in await check_grpc(address, "quire.v1.Nothing")
    finally:  # or gRPC stops it with its last reference, maybe in a later test, and complains about the event loop
        await server.server.stop(None)
    assert address in await check_grpc(address, "")


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/good" else 503)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_http(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthcheck, "_SECONDS", WAIT_SECONDS)
    assert await asyncio.to_thread(check_http, f"{pages}/good") == ""
    assert "503" in await asyncio.to_thread(check_http, f"{pages}/bad")
    assert "not an http address" in check_http("file:///etc/passwd")


@pytest.mark.parametrize(
    "arguments", [[], ["grpc"], ["grpc", "127.0.0.1:{port}"], ["http", "http://127.0.0.1:{port}/"]]
)
def test_exit_status(arguments: list[str]) -> None:
    filled = [argument.format(port=free_port()) for argument in arguments]
    result = subprocess.run(
        [sys.executable, "-m", "quire.healthcheck", *filled],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert result.returncode == 1
    assert result.stderr.strip()
    assert "Traceback" not in result.stderr
