"""What every Quire server has: health, reflection, InfoService, request ids, errors, deadlines, drain."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

import quire
from quire.errors import InvalidRequest, StartupError
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc import interceptors
from quire.rpc.channel import open_channel
from quire.rpc.context import REQUEST_ID_HEADER
from quire.rpc.server import GrpcServer
from quire.rpc.settings import MAX_MESSAGE_BYTES
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, common_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.quire.rpc.conftest import StartServer
from tests.support.engine_process import ROOT
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.router_client import generation
from tests.support.tcp_proxy import proxy_to
from tests.support.waiting import eventually

SERVICE = "quire.v1.EngineService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SECONDS = 60.0


def channel_to(engine: FakeEngine) -> grpc.aio.Channel:
    return open_channel(engine.address, RpcSecurityOptions())


async def get_load(
    channel: grpc.aio.Channel, *metadata: tuple[str, str], timeout: float | None = SECONDS
) -> tuple[engine_pb2.GetLoadResponse, dict[str, str]]:
    """(answer, trailing metadata)"""
    call = engine_pb2_grpc.EngineServiceStub(channel).GetLoad(
        engine_pb2.GetLoadRequest(), metadata=metadata, timeout=timeout
    )
    return await call, dict(await call.trailing_metadata())


async def count_answers(call: grpc.aio.UnaryStreamCall) -> int:
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    return count


@pytest.mark.parametrize("name", ["", SERVICE, "quire.v1.InfoService"])
async def test_health_check_by_service_name(start_server: StartServer, name: str) -> None:
    engine = await start_server()
    async with channel_to(engine) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=name)
        assert (await stub.Check(request, timeout=SECONDS)).status == SERVING
        await engine.rpc.set_serving(False)
        assert (await stub.Check(request, timeout=SECONDS)).status == NOT_SERVING


async def test_a_server_that_is_slow_to_greet_is_not_taken_for_none(start_server: StartServer) -> None:
    """On a busy machine, the connection is accepted long before its first frame arrives."""
    engine = await start_server()
    async with proxy_to(engine.address) as proxy:
        proxy.swallow()
        async with open_channel(proxy.address, RpcSecurityOptions()) as channel:
            asking = asyncio.create_task(get_load(channel))
            await eventually(lambda: proxy.num_connections == 1 or asking.done())
            asyncio.get_running_loop().call_later(0.4, proxy.heal)
            await asking


CALLER = """
import asyncio, sys
import grpc
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.v1 import engine_pb2, engine_pb2_grpc
from tests.support.router_client import generation

async def main():
    async with open_channel(sys.argv[1], RpcSecurityOptions()) as channel:
        call = engine_pb2_grpc.EngineServiceStub(channel).Generate(
            engine_pb2.EngineServiceGenerateRequest(generation=generation([1], 10_000))
        )
        try:
            while await call.read() is not grpc.aio.EOF:
                print("told", flush=True)
        except grpc.aio.AioRpcError as error:
            print(error.code().name)

asyncio.run(main())
"""


@pytest.mark.slow  # starts a process
async def test_grpc_prints_nothing_of_a_connection_that_ends(start_server: StartServer) -> None:
    engine = await start_server(options=FakeOptions(step_seconds=0.1))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER, engine.address,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"told\n"
    process.send_signal(signal.SIGSTOP)
    await eventually(lambda: engine.record.aborted, "the server does not notice that its caller is frozen")
    process.send_signal(signal.SIGCONT)
    told, printed = await asyncio.wait_for(process.communicate(), SECONDS)
    assert told.split()[-1] == b"UNAVAILABLE"
    assert printed == b""


async def test_health_check_of_an_unknown_service(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="quire.v1.Nothing"), timeout=SECONDS
            )
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watch_follows_changes(start_server: StartServer) -> None:
    engine = await start_server()
    async with channel_to(engine) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=SECONDS
        )
        assert (await watch.read()).status == SERVING
        await engine.rpc.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING
        await engine.rpc.set_serving(True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_reflection_lists_the_services(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=SECONDS
        )
        names = {service.name for service in (await call.read()).list_services_response.service}
        call.cancel()
    assert {SERVICE, "quire.v1.InfoService", "grpc.health.v1.Health"} <= names


async def test_server_info(start_server: StartServer) -> None:
    first, second = await start_server(), await start_server()
    answers = []
    for engine in (first, second):
        async with channel_to(engine) as channel:
            stub = common_pb2_grpc.InfoServiceStub(channel)
            answers.append(await stub.GetServerInfo(common_pb2.GetServerInfoRequest(), timeout=SECONDS))
    assert answers[0].service == "engine"
    assert answers[0].version == quire.__version__
    assert abs(answers[0].start_time_seconds - time.time()) < 60
    assert SERVICE in answers[0].grpc_services
    assert answers[0].instance_id != answers[1].instance_id


async def test_a_port_in_use_is_a_startup_error(start_server: StartServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"127.0.0.1:{port}.*--port"):
            await start_server(server=GrpcServerOptions(port=port))


async def test_an_address_of_version_6(start_server: StartServer) -> None:
    engine = await start_server(server=GrpcServerOptions(host="::1"))
    async with open_channel(f"[::1]:{engine.rpc.port}", RpcSecurityOptions()) as channel:
        await get_load(channel)


async def test_two_servers_cannot_share_a_port(start_server: StartServer) -> None:
    first = await start_server()
    with pytest.raises(StartupError, match="in use"):
        await start_server(server=GrpcServerOptions(port=first.rpc.port))


async def test_request_id_and_trace_pass_through(start_server: StartServer) -> None:
    engine = await start_server()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with channel_to(engine) as channel:
        _, told = await get_load(channel, (REQUEST_ID_HEADER, "abc-1.2_3"), ("traceparent", trace))
    assert told[REQUEST_ID_HEADER] == "abc-1.2_3"
    assert engine.record.metadata[-1] == {"traceparent": trace, REQUEST_ID_HEADER: "abc-1.2_3"}


@pytest.mark.parametrize("given", ["has spaces", "x" * 129, "semi;colon", ""])
async def test_a_malformed_request_id_is_replaced(start_server: StartServer, given: str) -> None:
    engine = await start_server()
    async with channel_to(engine) as channel:
        _, told = await get_load(channel, (REQUEST_ID_HEADER, given))
    assert re.fullmatch("[0-9a-f]{32}", told[REQUEST_ID_HEADER])
    assert engine.record.metadata[-1][REQUEST_ID_HEADER] == told[REQUEST_ID_HEADER]


async def test_one_calls_request_id_does_not_leak_into_the_next(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        _, first = await get_load(channel, (REQUEST_ID_HEADER, "first"))
        _, second = await get_load(channel)
    assert second[REQUEST_ID_HEADER] != first[REQUEST_ID_HEADER]


async def test_an_error_arrives_with_reason_and_parameter(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await get_load(channel, (REQUEST_ID_HEADER, "fail-with-error-info"))
    assert dict(failure.value.trailing_metadata())[REQUEST_ID_HEADER] == "fail-with-error-info"
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(failure.value)
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.reason, error.parameter) == ("Told to fail.", "TOLD_TO_FAIL", "load")


async def test_an_unexpected_exception_tells_nothing(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await get_load(channel, (REQUEST_ID_HEADER, "fail-unexpectedly"))
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in failure.value.details()
    assert "ZeroDivisionError: secret" in caplog.text


async def test_a_unary_call_without_a_deadline_ends_anyway(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptors, "UNARY_SECONDS", 0.2)
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await get_load(channel, (REQUEST_ID_HEADER, "sleep"), timeout=None)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "GetLoad" in failure.value.details()


async def test_an_unknown_method_is_unimplemented(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary("/quire.v1.EngineService/Nothing")(b"", timeout=SECONDS)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_garbage_on_the_wire_harms_one_call_only(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/quire.v1.EngineService/GetLoad")(b"\x80\x04K\x01.", timeout=SECONDS)
        answer, _ = await get_load(channel)
        assert answer.HasField("load")


async def test_a_message_over_the_limit_is_refused(start_server: StartServer) -> None:
    async with channel_to(await start_server()) as channel:
        request = engine_pb2.AbortRequest(request_ids=["x" * (MAX_MESSAGE_BYTES + 1)])
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await engine_pb2_grpc.EngineServiceStub(channel).Abort(request, timeout=SECONDS)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_drain_finishes_what_runs_and_says_not_serving_first(start_server: StartServer) -> None:
    engine = await start_server(server=GrpcServerOptions(drain_settle_seconds=0.3))
    serving = asyncio.create_task(engine.rpc.serve_until_stopped(engine.drain))
    await asyncio.sleep(0)
    async with channel_to(engine) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        call = stub.Generate(engine_pb2.EngineServiceGenerateRequest(generation=generation([1], 100)), timeout=SECONDS)
        await call.read()
        engine.rpc.stop_soon()
        assert (await watch.read()).status == NOT_SERVING
        # Calls are still accepted until load balancers notice.
        answer, _ = await get_load(channel)
        assert answer.load.running_sequences == 1
        assert await count_answers(call) == 99
        assert await call.code() is grpc.StatusCode.OK
    await asyncio.wait_for(serving, SECONDS)


async def test_drain_gives_up_after_its_timeout(start_server: StartServer) -> None:
    engine = await start_server(server=GrpcServerOptions(drain_timeout_seconds=0.2))
    serving = asyncio.create_task(engine.rpc.serve_until_stopped(engine.drain))
    async with channel_to(engine) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        call = stub.Generate(engine_pb2.EngineServiceGenerateRequest(generation=generation([1])), timeout=SECONDS)
        await call.read()
        engine.rpc.stop_soon()
        await asyncio.wait_for(serving, SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await count_answers(call)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not engine.live


@pytest.mark.parametrize("token", ["hush\n", "hush\thush", "hüsh"])
def test_a_token_that_no_call_could_carry_is_refused(token: str) -> None:
    with pytest.raises(StartupError, match="--grpc-token"):
        GrpcServerOptions().check(RpcSecurityOptions(grpc_token=token))
    GrpcServerOptions().check(RpcSecurityOptions(grpc_token="az09 -._~+/="))


def test_an_open_address_needs_tls_or_consent() -> None:
    registry, security = CollectorRegistry(), RpcSecurityOptions()
    with pytest.raises(StartupError, match="--insecure"):
        GrpcServer("engine", SERVICE, GrpcServerOptions(host="0.0.0.0"), security, registry)
    GrpcServerOptions(host="0.0.0.0", insecure=True).check(security)
