"""The worker as a process: starting, registering, draining, dying; and its watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine_svc.core.watchdog import EXIT_ENGINE_DIED, watch_steps
from engine_svc.service.registration import advertised_address, keep_registered
from quire.options.server import RpcSecurityOptions
from quire.options.watchdog import WatchdogOptions
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc, router_pb2, router_pb2_grpc

ROOT = Path(__file__).parents[3]
TIMEOUT = 30.0

PROGRAM = """
import asyncio, sys, time
from engine_svc.main import serve, EXIT_ENGINE_DIED
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.watchdog import WatchdogOptions
from tests.support.engine_options import engine_options
from quire.options.watchdog import WatchdogOptions
from tests.support.fake_executor import FakeExecutor

port, mode = int(sys.argv[1]), sys.argv[2]

def on_step(plan):
    if mode == "die" and plan.step >= 3:
        raise ValueError("kernel")
    if mode == "hang" and plan.step >= 3:
        time.sleep(1000)

limits = {"step_timeout_seconds": 1.0, "step_grace_seconds": 0.5} if mode == "hang" else {}
executor = FakeExecutor(
    step_seconds=0.01, on_step=on_step, available_bytes=1024 if mode == "small" else 2**22
)
try:
    died = asyncio.run(serve(executor, ModelOptions(model="tests"), engine_options(max_num_seqs=1, **limits),
                             GrpcServerOptions(port=port), RpcSecurityOptions()))
except StartupError as error:
    sys.exit(str(error))
sys.exit(EXIT_ENGINE_DIED if died else 0)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def worker_process(
    mode: str, port: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any, grpc.aio.Channel]]:
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(port), mode, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process, engine_pb2_grpc.EngineServiceStub(channel), channel
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_serving(channel: grpc.aio.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="quire.v1.EngineService")
    call = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True, timeout=TIMEOUT)
    async for answer in call:
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            break
    call.cancel()


def generation(max_tokens: int) -> common_pb2.Generation:
    return common_pb2.Generation(prompt_token_ids=[1], sampling=common_pb2.SamplingParams(max_tokens=max_tokens))


def generate(stub: Any, max_tokens: int) -> Any:
    request = engine_pb2.EngineServiceGenerateRequest(generation=generation(max_tokens))
    return stub.Generate(request, timeout=TIMEOUT)


async def test_sigterm_lets_running_requests_finish() -> None:
    async with worker_process("run") as (process, stub, channel):
        await wait_serving(channel)
        call = generate(stub, 40)
        count = len((await call.read()).delta.token_ids)
        process.send_signal(signal.SIGTERM)
        while (response := await call.read()) is not grpc.aio.EOF:
            count += len(response.delta.token_ids)
        assert count == 40
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == 0


@pytest.mark.parametrize("ending", ["cancelled", "connection closed"])
async def test_what_a_frozen_worker_ran_for_a_lost_session_is_freed_when_it_thaws(ending: str) -> None:
    port = free_port()
    async with worker_process("run", port) as (process, stub, channel):
        await wait_serving(channel)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as lost:
            session = engine_pb2_grpc.EngineServiceStub(lost).Session(timeout=TIMEOUT)
            starts = [engine_pb2.SessionStart(stream_id=index, generation=generation(2000)) for index in range(1, 4)]
            await session.write(engine_pb2.EngineServiceSessionRequest(starts=starts))
            while not (await session.read()).deltas:
                continue
            process.send_signal(signal.SIGSTOP)
            if ending == "cancelled":
                session.cancel()
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(TIMEOUT):
            while True:
                load = (await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=TIMEOUT)).load
                if not (load.used_kv_blocks or load.busy or load.waiting_requests):
                    break
                await asyncio.sleep(0.02)
        assert load.counters.generation_tokens < 1000  # of the 2,000 that one of them would have had


async def test_a_dead_engine_ends_the_process() -> None:
    async with worker_process("die") as (process, stub, channel):
        await wait_serving(channel)
        outcomes = await asyncio.gather(*(_outcome(stub) for _ in range(4)))
        assert set(outcomes) <= {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == EXIT_ENGINE_DIED


@pytest.mark.slow
async def test_an_engine_that_hangs_ends_the_process() -> None:
    async with worker_process("hang") as (process, stub, channel):
        await wait_serving(channel)
        assert await _outcome(stub) is grpc.StatusCode.UNAVAILABLE
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == EXIT_ENGINE_DIED
        assert process.stderr is not None
        lines = (await process.stderr.read()).decode().splitlines()
        assert "on_step" in "".join(lines)  # where it hangs
        assert "the process ends with code 70" in lines[-1]


async def _outcome(stub: Any) -> grpc.StatusCode:
    call = generate(stub, 40)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            continue
    code = await call.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def test_a_model_that_does_not_fit_ends_the_start() -> None:
    async with worker_process("small") as (process, _, _):
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == 1
        assert process.stderr is not None
        assert b"The largest --max-model-len that fits is 16" in await process.stderr.read()


class Router(router_pb2_grpc.RouterServiceServicer):
    """Grants leases, and forgets each after two heartbeats."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.beats = 0
        self.twice = asyncio.Event()

    async def RegisterWorker(
        self, request: router_pb2.RegisterWorkerRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.RegisterWorkerResponse:
        self.addresses.append(request.address)
        self.beats = 0
        if len(self.addresses) == 2:
            self.twice.set()
        return router_pb2.RegisterWorkerResponse(lease_id=f"lease-{len(self.addresses)}", lease_ms=150)

    async def Heartbeat(
        self, request: router_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.HeartbeatResponse:
        self.beats += 1
        if request.lease_id != f"lease-{len(self.addresses)}" or self.beats > 2:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        return router_pb2.HeartbeatResponse(lease_ms=150)


async def test_registers_again_when_the_router_forgets() -> None:
    port, router = free_port(), Router()
    job = asyncio.create_task(keep_registered(f"127.0.0.1:{port}", "here:1", RpcSecurityOptions()))
    await asyncio.sleep(0.1)  # the router comes later than the worker
    server = grpc.aio.server()
    router_pb2_grpc.add_RouterServiceServicer_to_server(router, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        await asyncio.wait_for(router.twice.wait(), TIMEOUT)
        assert router.addresses == ["here:1", "here:1"]
    finally:
        job.cancel()
        await server.stop(grace=0)


def test_advertised_address() -> None:
    assert advertised_address("127.0.0.1", 5, None) == "127.0.0.1:5"
    assert advertised_address("0.0.0.0", 5, None) == f"{socket.gethostname()}:5"
    assert advertised_address("0.0.0.0", 5, "a:1") == "a:1"


async def test_watchdog_follows_the_steps() -> None:
    age = [5.0]
    states: asyncio.Queue[bool] = asyncio.Queue()
    given_up: asyncio.Queue[float] = asyncio.Queue()
    limits = WatchdogOptions(step_timeout_seconds=1.0, step_grace_seconds=1000.0)
    job = asyncio.create_task(watch_steps(lambda: age[0], limits, states.put, given_up.put_nowait))
    assert await asyncio.wait_for(states.get(), TIMEOUT) is False
    age[0] = 0.0
    assert await asyncio.wait_for(states.get(), TIMEOUT) is True
    assert given_up.empty()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_watchdog_gives_up_a_step_that_does_not_end() -> None:
    states: asyncio.Queue[bool] = asyncio.Queue()
    given_up: asyncio.Queue[float] = asyncio.Queue()
    job = asyncio.create_task(watch_steps(lambda: 5.0, WatchdogOptions(1.0, 0.0), states.put, given_up.put_nowait))
    assert await asyncio.wait_for(given_up.get(), TIMEOUT) == 5.0
    assert states.get_nowait() is False
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
