"""The worker process: starting, draining, dying."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine_svc.core.watchdog import EXIT_ENGINE_DIED
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from tests.support.engine_process import free_port

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0

PROGRAM = """
import asyncio, sys, time
from engine_svc.main import serve, EXIT_ENGINE_DIED
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor

port, mode = int(sys.argv[1]), sys.argv[2]

def on_step(plan):
    if mode == "die" and plan.step >= 3:
        raise ValueError("kernel")
    if mode == "hang" and plan.step >= 3:
        time.sleep(1000)

limits = {"step_timeout_seconds": 1.0, "step_grace_seconds": 0.5} if mode == "hang" else {}
executor = FakeExecutor(
    step_seconds=0.01, on_step=on_step, available_bytes=1 if mode == "small" else 2**22
)
try:
    died = asyncio.run(serve(executor, ModelOptions(model="tests"), engine_options(max_num_seqs=1, **limits),
                             GrpcServerOptions(port=port), RpcSecurityOptions()))
except StartupError as error:
    sys.exit(str(error))
sys.exit(EXIT_ENGINE_DIED if died else 0)
"""


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
        assert load.counters.generation_tokens < 1000  # of the 2,000 that each of them asked for


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
        assert "on_step" in "".join(lines)  # shows where it hangs
        assert "the process exits with code 70" in lines[-1]


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
        assert b"Not even one block fits" in await process.stderr.read()
