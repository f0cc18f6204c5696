"""Who may call: the shared token, and TLS in both directions."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.certificates import certificate_expiries
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


async def test_renewed_files_are_used_by_both_sides(
    start_server: StartServer, certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of another authority, without a restart; streams go on, and a broken file changes nothing."""
    caplog.set_level(logging.INFO, "quire.watched_files")
    shutil.copytree(certificates, tmp_path, dirs_exist_ok=True)
    engine = await start_server(security_of(tmp_path, "engine"))
    async with (
        open_channel(engine.address, security_of(tmp_path, "router")) as channel,
        open_channel(engine.address, security_of(certificates / "other", "router")) as new_only,
    ):
        request = engine_pb2.EngineServiceGenerateRequest(generation=generation([4], 100_000))
        running = engine_pb2_grpc.EngineServiceStub(channel).Generate(request, timeout=SECONDS)
        await running.read()

        (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
        assert await outcome(engine, channel) is grpc.StatusCode.OK
        async with open_channel(engine.address, security_of(certificates, "router")) as another:
            assert await outcome(engine, another) is grpc.StatusCode.OK
        (warning,) = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
        assert f"keeping the old ones: --grpc-tls-ca-certs {tmp_path / 'ca.pem'} must be certificates" in warning

        assert await outcome(engine, new_only) is grpc.StatusCode.UNAVAILABLE
        shutil.copytree(certificates / "other", tmp_path, dirs_exist_ok=True)
        assert await outcome(engine, channel) is grpc.StatusCode.OK
        while await outcome(engine, new_only) is not grpc.StatusCode.OK:  # until it tries to connect again
            await asyncio.sleep(0.02)
        async with open_channel(engine.address, security_of(certificates, "router")) as old_only:
            assert await outcome(engine, old_only) is grpc.StatusCode.UNAVAILABLE
        assert "the certificates of the services were reloaded" in caplog.messages
        assert certificate_expiries()["certificates of the services"] > time.time()
        for _ in range(50):
            assert await running.read() is not grpc.aio.EOF
        running.cancel()


def test_files_that_cannot_be_used_are_refused_at_the_start(certificates: Path) -> None:
    security = dataclasses.replace(security_of(certificates, "router"), grpc_tls_keyfile="/nowhere")
    with pytest.raises(StartupError, match=r"--grpc-tls-keyfile /nowhere cannot be read"):
        security.check()


def test_half_a_tls_configuration_is_refused() -> None:
    with pytest.raises(StartupError, match="all of"):
        _ = RpcSecurityOptions(grpc_tls_certfile="a.pem").tls
