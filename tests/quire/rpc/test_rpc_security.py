"""Who may call: the shared token, and TLS in both directions."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.errors import StartupError
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.v1 import common_pb2, common_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.quire.rpc.conftest import StartServer
from tests.support.certificates import make_authority, make_certificate
from tests.support.fake_engine import FakeEngine, expected_tokens
from tests.support.router_client import generation

SECONDS = 60.0
TOKEN = RpcSecurityOptions(grpc_token="correct horse")


async def call_everything(
    channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]
) -> dict[str, grpc.StatusCode]:
    """Method → status, with one call of each kind."""
    engine = engine_pb2_grpc.EngineServiceStub(channel)
    info = common_pb2_grpc.InfoServiceStub(channel)
    request = engine_pb2.EngineServiceGenerateRequest(generation=generation([1], 1))
    return {
        "GetLoad": await code_of(engine.GetLoad(engine_pb2.GetLoadRequest(), metadata=metadata, timeout=SECONDS)),
        "GetServerInfo": await code_of(
            info.GetServerInfo(common_pb2.GetServerInfoRequest(), metadata=metadata, timeout=SECONDS)
        ),
        "Generate": await code_of_stream(engine.Generate(request, metadata=metadata, timeout=SECONDS)),
        "Session": await code_of_stream(engine.Session(metadata=metadata, timeout=SECONDS)),
    }


async def code_of(call: grpc.aio.Call) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


async def code_of_stream(call: grpc.aio.Call) -> grpc.StatusCode:
    """The status of a streaming call: OK once it has sent an answer."""
    try:
        answer = await call.read()
    except grpc.aio.AioRpcError:
        answer = grpc.aio.EOF
    if answer is grpc.aio.EOF:
        return await code_of(call)
    call.cancel()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer wrong"),), (("authorization", "correct horse"),), (("authorization", "Bearer "),)],
)
async def test_calls_without_the_token_are_refused(
    start_server: StartServer, metadata: tuple[tuple[str, str], ...]
) -> None:
    engine = await start_server(TOKEN)
    async with open_channel(engine.address, TOKEN) as channel:
        codes = await call_everything(channel, metadata)
    assert set(codes.values()) == {grpc.StatusCode.UNAUTHENTICATED}, codes
    assert not engine.record.started


async def test_calls_with_the_token_pass(start_server: StartServer) -> None:
    engine = await start_server(TOKEN)
    async with open_channel(engine.address, TOKEN) as channel:
        codes = await call_everything(channel, call_metadata(TOKEN))
    assert set(codes.values()) == {grpc.StatusCode.OK}, codes


async def test_health_needs_no_token(start_server: StartServer) -> None:
    engine = await start_server(TOKEN)
    async with open_channel(engine.address, TOKEN) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


def security_of(folder: Path, name: str) -> RpcSecurityOptions:
    return RpcSecurityOptions(
        grpc_tls_certfile=str(folder / f"{name}.pem"),
        grpc_tls_keyfile=str(folder / f"{name}.key"),
        grpc_tls_ca_certs=str(folder / "ca.pem"),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA and the certificates of two services, and `other/` with those of another CA."""
    if not shutil.which("openssl"):
        pytest.skip("certificates are made with the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    (folder / "other").mkdir()
    for place in (folder, folder / "other"):
        make_authority(place)
        for name in ("engine", "router"):
            make_certificate(place, name)
    return folder


async def outcome(engine: FakeEngine, channel: grpc.aio.Channel) -> grpc.StatusCode:
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    code: grpc.StatusCode = await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=SECONDS).code()
    return code


async def test_peers_of_one_authority_talk(start_server: StartServer, certificates: Path) -> None:
    engine = await start_server(security_of(certificates, "engine"))
    async with open_channel(engine.address, security_of(certificates, "router")) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        request = engine_pb2.EngineServiceGenerateRequest(generation=generation([4], 5))
        answers = stub.Generate(request, timeout=SECONDS)
        assert [t async for answer in answers for t in answer.delta.token_ids] == expected_tokens([4], 5)


async def test_strangers_are_refused(start_server: StartServer, certificates: Path) -> None:
    """Refuses a certificate of another CA, a client that trusts the right CA but has no certificate, and plain text."""
    engine = await start_server(security_of(certificates, "engine"))
    authority = (certificates / "ca.pem").read_bytes()
    stranger = dataclasses.replace(
        security_of(certificates / "other", "router"), grpc_tls_ca_certs=str(certificates / "ca.pem")
    )
    channels = [
        open_channel(engine.address, stranger),
        grpc.aio.secure_channel(engine.address, grpc.ssl_channel_credentials(authority)),
        grpc.aio.insecure_channel(engine.address),
    ]
    for channel in channels:
        async with channel:
            assert await outcome(engine, channel) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("name", "code"), [("localhost", "OK"), ("elsewhere", "UNAVAILABLE")])
async def test_a_peer_that_was_found_by_name_shows_that_names_certificate(
    start_server: StartServer, certificates: Path, name: str, code: str
) -> None:
    engine = await start_server(security_of(certificates, "engine"))
    async with open_channel(engine.address, security_of(certificates, "router"), name) as channel:
        assert (await outcome(engine, channel)).name == code


async def test_a_server_of_another_authority_is_not_trusted(start_server: StartServer, certificates: Path) -> None:
    engine = await start_server(security_of(certificates / "other", "engine"))
    async with open_channel(engine.address, security_of(certificates, "router")) as channel:
        assert await outcome(engine, channel) is grpc.StatusCode.UNAVAILABLE


def test_half_a_tls_configuration_is_refused() -> None:
    with pytest.raises(StartupError, match="all of"):
        _ = RpcSecurityOptions(grpc_tls_certfile="a.pem").tls
