"""Certificates that change while a server runs (`--enable-ssl-refresh`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from pathlib import Path

import pytest

from gateway.certificates import Certificates
from quire.certificates import certificate_expiries, expiry, load_certificates
from quire.errors import StartupError
from quire.options.gateway import GatewayOptions
from tests.support.certificates import make_authority, make_certificate
from tests.support.waiting import WAIT_SECONDS


async def shown(port: int) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    told: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await close(writer)
    return told


async def close(writer: asyncio.StreamWriter) -> None:
    """Waits until the connection is fully closed; a leftover would be reported after the event loop is gone."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.asyncio
async def test_new_connections_get_what_the_files_hold(tmp_path: Path) -> None:
    make_authority(tmp_path)
    for name in ("one", "two"):
        make_certificate(tmp_path, name)
    key, certificate = tmp_path / "server.key", tmp_path / "server.pem"

    def put(name: str, key_name: str) -> None:
        for suffix, path, source in ((".key", key, key_name), (".pem", certificate, name)):
            (tmp_path / "new").write_bytes((tmp_path / f"{source}{suffix}").read_bytes())
            (tmp_path / "new").replace(path)

    put("one", "one")
    options = GatewayOptions(ssl_keyfile=str(key), ssl_certfile=str(certificate), enable_ssl_refresh=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    certificates = Certificates(tls, options)
    left = asyncio.Queue[None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await close(writer)
        left.put_nowait(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    first = await shown(port)
    put("two", "one")  # the new key has not arrived yet
    certificates.files.refresh()
    assert await shown(port) == first
    put("two", "two")
    certificates.files.refresh()
    second = await shown(port)
    assert second != first
    assert certificate_expiries()["certificates"] == expiry(certificate.read_bytes())
    certificate.unlink()
    certificates.files.refresh()
    assert await shown(port) == second
    for _ in range(4):
        await asyncio.wait_for(left.get(), WAIT_SECONDS)
    server.close()


def answered(port: int, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
    """Returns the TLS session of an answered connection, to resume in the next; raises OSError if refused."""
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        client.wrap_socket(raw, server_hostname="localhost", session=session) as connection,
    ):
        if connection.recv(1) != b"x":
            raise ConnectionResetError
        return connection.session


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_authority_that_is_taken_out_is_trusted_no_more(tmp_path: Path, version: ssl.TLSVersion) -> None:
    clients: dict[str, ssl.SSLContext] = {}
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        make_authority(tmp_path / name)
        make_certificate(tmp_path / name, "of")
        clients[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        clients[name].check_hostname, clients[name].verify_mode = False, ssl.CERT_NONE
        clients[name].maximum_version = version
        clients[name].load_cert_chain(tmp_path / name / "of.pem", tmp_path / name / "of.key")
    certificate, key = tmp_path / "old" / "of.pem", tmp_path / "old" / "of.key"
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((tmp_path / "old" / "ca.pem").read_bytes())
    tls = load_certificates("--ssl", str(certificate), str(key), str(trusted)).context
    tls.verify_mode = ssl.CERT_REQUIRED
    certificates = Certificates(tls, GatewayOptions(
        ssl_keyfile=str(key), ssl_certfile=str(certificate), ssl_ca_certs=str(trusted), enable_ssl_refresh=True
    ))  # fmt: skip

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await close(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        session = await asyncio.to_thread(answered, port, clients["old"])
        with pytest.raises(OSError):
            await asyncio.to_thread(answered, port, clients["new"])
        trusted.write_bytes((tmp_path / "new" / "ca.pem").read_bytes())
        os.utime(trusted, (1, 1))
        certificates.files.refresh()
        await asyncio.to_thread(answered, port, clients["new"])
        for taken_up in (None, session):
            with pytest.raises(OSError):
                await asyncio.to_thread(answered, port, clients["old"], taken_up)


def test_it_is_for_https() -> None:
    with pytest.raises(StartupError, match="--enable-ssl-refresh"):
        GatewayOptions(enable_ssl_refresh=True).check()


def test_ciphers(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "one")
    files = str(tmp_path / "one.pem"), str(tmp_path / "one.key"), None
    allowed = load_certificates("--ssl", *files, "ECDHE-RSA-AES256-GCM-SHA384").context.get_ciphers()
    assert {each["name"] for each in allowed if each["protocol"] != "TLSv1.3"} == {"ECDHE-RSA-AES256-GCM-SHA384"}
    with pytest.raises(StartupError, match="--ssl-ciphers 'NOTHING' names no cipher"):
        load_certificates("--ssl", *files, "NOTHING")
    with pytest.raises(StartupError, match="--ssl-ciphers is for HTTPS"):
        GatewayOptions(ssl_ciphers="ECDHE+AESGCM").check()
