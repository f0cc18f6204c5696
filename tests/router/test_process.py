"""The router as a process: start, metrics, drain, invalid options."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.options.router import ROUTING_POLICIES
from tests.router.conftest import StartEngine
from tests.support.engine_process import free_port
from tests.support.fake_engine import FakeOptions, expected_tokens
from tests.support.router_client import connect, generation
from tests.support.signals import is_pending
from tests.support.waiting import WAIT_SECONDS, eventually_now

ROOT = Path(__file__).parents[2]
CODE = "from quire.cli import main; main()"
STOPPED_AS_IT_SERVES = """
import os, signal
from grpc_health.v1 import health, health_pb2

say = health.aio.HealthServicer.set

async def stop_and_say(servicer, service, status):
    if status == health_pb2.HealthCheckResponse.SERVING and not service:
        os.kill(os.getpid(), signal.SIGTERM)
    await say(servicer, service, status)

health.aio.HealthServicer.set = stop_and_say
"""


def router_process(*arguments: str, code: str = CODE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, "router", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def run_router(*arguments: str) -> tuple[int, str]:
    """(exit status, standard error) of a router that fails to start."""
    process = router_process(*arguments)
    _, stderr = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, stderr


async def wait_serving(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service="quire.v1.RouterService")
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=WAIT_SECONDS, wait_for_ready=True)
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            continue


async def test_serves_drains_and_exits(start_engine: StartEngine) -> None:
    engine = await start_engine(step_seconds=0.02)
    port, metrics_port = free_port(), free_port()
    process = router_process("--port", str(port), "--workers", engine.address, "--metrics-port", str(metrics_port))
    try:
        await wait_serving(port)
        async with connect(port) as client:
            await client.wait_ready(engine.address)
            async with client.session() as session:
                await (await session.start(1, generation([1], 50))).wait_tokens()
                engine.options = FakeOptions(silent=True)  # for as long as the page and the signal take
                metrics = await asyncio.to_thread(read, f"http://127.0.0.1:{metrics_port}/metrics")
                assert f'quire_router_worker_inflight_requests{{engine="",worker="{engine.address}"}} 1.0' in metrics
                assert 'quire_router_workers{state="ready"} 1.0' in metrics
                assert "quire_router_deltas_total" in metrics
                process.send_signal(signal.SIGTERM)
                engine.options = FakeOptions()
                assert (await session.outputs[1].wait_ended()).tokens[0] == expected_tokens([1], 50)
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as response:
        text: str = response.read().decode()
        return text


async def test_needs_little_cpu_to_be_ready() -> None:
    """Measured as CPU time, which other load on the machine does not stretch."""
    port = free_port()
    process = router_process("--port", str(port))
    try:
        await wait_serving(port)
        assert cpu_seconds(process.pid) < 1.5
    finally:
        process.kill()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_second_signal_stops_at_once() -> None:
    port = free_port()
    process = router_process("--port", str(port), "--drain-settle-seconds", "60")
    try:
        asyncio.run(wait_serving(port))
        process.send_signal(signal.SIGTERM)
        eventually_now(lambda: not is_pending(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_who_is_stopped_as_he_begins_to_serve_drains_too() -> None:
    process = router_process("--port", str(free_port()), code=STOPPED_AS_IT_SERVES + CODE)
    _, stderr = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, stderr


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, stderr = run_router("--port", str(port))
    assert status == 1
    assert f"127.0.0.1:{port}" in stderr
    assert "--port" in stderr
    assert "Traceback" not in stderr


def test_unknown_policy() -> None:
    status, stderr = run_router("--routing-policy", "psychic")
    assert status == 2
    assert all(f"'{name}'" in stderr for name in ROUTING_POLICIES)


def test_malformed_worker() -> None:
    status, stderr = run_router("--workers", "engine")
    assert status == 1
    assert "--workers 'engine' is not host:port" in stderr


def test_refuses_to_listen_unprotected_beyond_this_machine() -> None:
    status, stderr = run_router("--host", "0.0.0.0")
    assert status == 1
    assert "--insecure" in stderr
