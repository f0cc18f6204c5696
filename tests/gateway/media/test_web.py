"""Images, videos and audio from other hosts: real HTTP servers on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpcore
import pytest

from gateway.media.fetch import MediaFetcher
from gateway.media.source import MediaSource
from gateway.media.web import MAX_CONNECTIONS, WebMedia
from quire.errors import InvalidRequest
from quire.media import MAX_FILE_BYTES, MediaKind
from quire.options.media import MediaOptions
from tests.support.certificates import make_authority, make_certificate

PLACE = "messages[0].content[1]"
MOST = MAX_FILE_BYTES[MediaKind.IMAGE]
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def image(url: str) -> MediaSource:
    return MediaSource(url, PLACE, MediaKind.IMAGE)


class Host:
    """An HTTP server that answers every request in the same way and then closes the connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[Any]] = set()
        self.requests: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self._answer(writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the gateway has hung up
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._tasks.remove(task)

    async def end(self) -> None:
        """Ends the answers under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def url(self, path: str = "/cat.png", scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


def sends(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


OK = sends(response(b"cat"))


@contextlib.asynccontextmanager
async def running(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Host]:
    host = Host(answer)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        await host.end()
        await server.wait_closed()


class Connector(httpcore.AsyncNetworkBackend):
    """Records the addresses that connections are made to, and makes them to a port of 127.0.0.1 instead.

    Attributes:
        dead: addresses that do not answer.
    """

    def __init__(self, port: int, dead: Sequence[str] = ()) -> None:
        self._port, self._dead = port, dead
        self.addresses: list[tuple[str, int]] = []
        self.timeouts: list[float | None] = []

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        self.addresses.append((host, port))
        self.timeouts.append(timeout)
        if host in self._dead:
            raise httpcore.ConnectTimeout
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self._port)


class Names:
    """A resolver whose answers change with each lookup."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def fetched(url: str, *domains: str, kind: MediaKind = MediaKind.IMAGE, **seconds: Any) -> bytes:
    fetcher = MediaFetcher(MediaOptions(allowed_media_domains=domains, **seconds))
    try:
        (file,) = await fetcher.fetch(MediaSource(url, PLACE, kind))
        return file
    finally:
        await fetcher.close()


async def message_of(fetch: Awaitable[bytes]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetch
    assert caught.value.parameter == "messages"
    assert PLACE in caught.value.message
    return caught.value.message


async def got(
    url: str,
    domains: tuple[str, ...],
    names: Names,
    connector: httpcore.AsyncNetworkBackend | None = None,
    kind: MediaKind = MediaKind.IMAGE,
) -> bytes:
    """Like `fetched`, with a resolver and perhaps a connector of the test's own."""
    web = WebMedia(MediaOptions(allowed_media_domains=domains), names.resolve, connector)
    try:
        return await web.get(MediaSource(url, PLACE, kind))
    finally:
        await web.close()


async def test_an_image_of_a_listed_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    async with running(sends(response(b"cat", "200 OK", "Set-Cookie: a=b"))) as host:
        fetcher = MediaFetcher(MediaOptions(allowed_media_domains=("127.0.0.1",)))
        for _ in range(2):
            assert await fetcher.fetch(image(host.url("/a/cat.png?size=1&b=%20#part"))) == (b"cat",)
        await fetcher.close()
        head, *headers = host.requests[1].strip().split("\r\n")
        assert head == "GET /a/cat.png?size=1&b=%20 HTTP/1.1"
        assert f"Host: 127.0.0.1:{host.port}" in headers
        assert "Accept-Encoding: identity" in headers
        assert "cookie" not in host.requests[1].lower()


async def test_names_are_looked_up_by_the_system() -> None:
    async with running(OK) as host:
        assert await fetched(host.url(host="LocalHost"), "localHOST") == b"cat"
        assert f"Host: localhost:{host.port}" in host.requests[0]


@pytest.mark.parametrize("domains", [("localhost",), ("0.0.1",), ("*",)])
async def test_other_hosts_and_ports_are_refused(domains: tuple[str, ...]) -> None:
    async with running(OK) as host:
        assert "--allowed-media-domains does not allow" in await message_of(fetched(host.url(), *domains))
        assert not host.requests


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user@127.0.0.1/", "user name"),
        ("http://user:secret@127.0.0.1/", "user name"),
        ("http://127.0.0.1:80@other.example/", "user name"),
        ("http://127.0.0.1\\@other.example/", "backslash"),
        ("http:\\\\127.0.0.1/", "backslash"),
        ("http://127.0.0.1/a b", "white space"),
        ("http://127.0.0.1/a\tb", "control"),
        ("http://127.0.0.1/\r\nX: y", "control"),
        ("http://127.0.0.1/\x00", "control"),
        ("http://127.0.0.1/\x85", "control"),
        ("http://127.0.0.1/\u3000", "white space"),
        ("http://", "no host"),
        ("http:///127.0.0.1", "no host"),
        ("http:127.0.0.1", "no host"),
        ("http://127.0.0.1:0/", "valid URL"),
        ("http://127.0.0.1:65536/", "valid URL"),
        ("http://127.0.0.1:-1/", "valid URL"),
        ("http://127.0.0.1:http/", "valid URL"),
        ("http://127.0.0.256/", "valid URL"),
        ("http://[::1/", "valid URL"),
        ("http://127.0.0.1/\ud800", "valid URL"),
        ("http://xn--a/", "does not allow"),
        ("http://127.0.0.1./", "does not allow"),
        ("http://127.0.0.1/" + "x" * 9000, "characters"),
    ],
)
async def test_malformed_urls(url: str, words: str) -> None:
    message = await message_of(fetched(url, "127.0.0.1"))
    assert words in message
    assert "secret" not in message
    assert len(message) < 400


async def test_redirects_are_not_followed() -> None:
    for status in (301, 302, 303, 307, 308):
        async with running(sends(response(b"", f"{status} Moved", "Location: /other"))) as host:
            message = await message_of(fetched(host.url(), "127.0.0.1"))
            assert f"status {status}" in message and "final URL" in message
            assert len(host.requests) == 1


@pytest.mark.parametrize("status", [201, 204, 206, 304, 404, 500])
async def test_another_status(status: int) -> None:
    async with running(sends(f"HTTP/1.1 {status} X\r\n\r\ncat".encode())) as host:
        assert f"status {status} " in await message_of(fetched(host.url(), "127.0.0.1"))


@pytest.mark.parametrize("kind", MediaKind)
async def test_the_announced_size_is_checked_first(kind: MediaKind) -> None:
    most = MAX_FILE_BYTES[kind]

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {most + 1}\r\n\r\n".encode())
        await asyncio.Event().wait()  # the body never follows

    async with running(answer) as host:
        message = await message_of(fetched(host.url(), "127.0.0.1", kind=kind))
        assert f"more than the {most} bytes" in message and f"{kind}. Send a smaller one" in message


async def test_a_video_may_be_larger_than_an_image() -> None:
    async with running(sends(response(bytes(MOST + 1)))) as host:
        assert len(await fetched(host.url(), "127.0.0.1", kind=MediaKind.VIDEO)) == MOST + 1
        assert str(MOST) in await message_of(fetched(host.url(), "127.0.0.1"))


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [(MediaKind.IMAGE, "image/*"), (MediaKind.VIDEO, "video/*, image/*"), (MediaKind.AUDIO, "audio/*")],
)
async def test_the_host_is_told_what_is_accepted(kind: MediaKind, accepted: str) -> None:
    async with running(OK) as host:
        assert await fetched(host.url(), "127.0.0.1", kind=kind) == b"cat"
        assert f"\r\nAccept: {accepted}\r\n" in host.requests[0]


@pytest.mark.parametrize("extra", [0, 1])
async def test_the_size_of_a_body_in_chunks(extra: int) -> None:
    piece = bytes(2**20)
    chunks = [b"100000\r\n" + piece + b"\r\n"] * (MOST // len(piece)) + [b"1\r\nx\r\n"] * extra
    # Without an end: what is too large is refused before.
    parts = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *chunks, *([] if extra else [b"0\r\n\r\n"])]
    async with running(sends(*parts)) as host:
        if extra:
            assert str(MOST) in await message_of(fetched(host.url(), "127.0.0.1"))
        else:
            assert len(await fetched(host.url(), "127.0.0.1")) == MOST


async def test_a_body_without_an_announced_size() -> None:
    async with running(sends(b"HTTP/1.0 200 OK\r\n\r\n", bytes(1000))) as host:
        assert await fetched(host.url(), "127.0.0.1") == bytes(1000)


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip"])
async def test_compressed_bodies_are_refused(encoding: str) -> None:
    bomb = gzip.compress(bytes(2 * MOST), 1)
    async with running(sends(response(bomb, "200 OK", f"Content-Encoding: {encoding}"))) as host:
        assert "compressed" in await message_of(fetched(host.url(), "127.0.0.1"))


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_host_that_trickles(start: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(start or b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with running(answer) as host:
        message = await message_of(fetched(host.url(), "127.0.0.1", image_fetch_timeout_seconds=0.15))
        assert "within 0.15 s" in message and "--image-fetch-timeout-seconds" in message


@pytest.mark.parametrize("kind", MediaKind)
async def test_each_kind_has_its_own_time(kind: MediaKind) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(response(b"cat"))

    others = set(MediaKind) - {kind}
    seconds: Any = {f"{each}_fetch_timeout_seconds": 0.15 if each is kind else 20.0 for each in MediaKind}
    async with running(answer) as host:
        message = await message_of(fetched(host.url(), "127.0.0.1", kind=kind, **seconds))
        assert f"within 0.15 s (--{kind}-fetch-timeout-seconds)" in message
        for other in others:
            assert await fetched(host.url(), "127.0.0.1", kind=other, **seconds) == b"cat"


async def test_many_tiny_chunks_do_not_hold_up_other_work() -> None:
    count, turns = 20_000, 0
    body = b"1\r\nx\r\n" * count
    async with running(sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n")) as host:
        fetching = asyncio.create_task(fetched(host.url(), "127.0.0.1"))
        while not fetching.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(await fetching) == count
    assert turns > count // 2


async def test_a_few_connections_at_a_time() -> None:
    now, most, full = 0, 0, asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == MAX_CONNECTIONS:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)  # for connections beyond the limit to arrive
        now -= 1
        writer.write(response(b"cat"))

    async with running(answer) as host:
        fetcher = MediaFetcher(MediaOptions(allowed_media_domains=("127.0.0.1",)))
        images = await asyncio.gather(*(fetcher.fetch(image(host.url())) for _ in range(3 * MAX_CONNECTIONS)))
        await fetcher.close()
        assert images == [(b"cat",)] * len(images)
    assert most == MAX_CONNECTIONS == 8


async def test_waiting_for_a_connection_does_not_count() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        if "/slow" in host.requests[-1]:
            await asyncio.Event().wait()
        writer.write(response(b"cat"))

    async with running(answer) as host:
        options = MediaOptions(allowed_media_domains=("127.0.0.1",), image_fetch_timeout_seconds=0.4)
        fetcher = MediaFetcher(options)
        slow = [asyncio.create_task(fetcher.fetch(image(host.url("/slow")))) for _ in range(MAX_CONNECTIONS)]
        await asyncio.sleep(0)
        assert await fetcher.fetch(image(host.url())) == (b"cat",)
        assert all(isinstance(error, InvalidRequest) for error in await asyncio.gather(*slow, return_exceptions=True))
        await fetcher.close()


async def test_a_name_that_changes_its_address_is_looked_up_once() -> None:
    async with running(OK) as host:
        names, connector = Names(["93.184.216.34"], ["127.0.0.1"]), Connector(host.port)
        assert await got("http://a.example/cat.png", ("*",), names, connector) == b"cat"
        assert connector.addresses == [("93.184.216.34", 80)]
        assert names.asked == [("a.example", 80)]
        assert "Host: a.example\r\n" in host.requests[0]
        # The next request checks again.
        await message_of(got("http://a.example/cat.png", ("*",), names, connector))
        assert len(connector.addresses) == len(host.requests) == 1


@pytest.mark.parametrize(
    ("domains", "url", "addresses"),
    [
        (("*",), "http://a.example/", ["127.0.0.1"]),
        (("*",), "https://a.example/", ["10.0.0.1"]),
        (("*",), "http://a.example/", ["93.184.216.34", "10.0.0.1"]),
        (("*",), "http://[::ffff:7f00:1]/", ["::ffff:127.0.0.1"]),
        (("a.example",), "http://a.example:8080/", ["169.254.169.254"]),
        (("a.example",), "http://a.example/", ["10.0.0.1", "fe80::1%eth0"]),
        (("*", "a.example"), "http://b.example/", ["10.0.0.1"]),
        (("a.example",), "http://a.example/", []),
        (("a.example",), "http://a.example/", socket.gaierror("unknown")),
        (("a.example",), "http://a.example/", UnicodeError("label too long")),
    ],
)
async def test_what_cannot_be_reached_always_looks_the_same(
    domains: tuple[str, ...], url: str, addresses: Sequence[str] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(OK) as host:
        connector = Connector(host.port)
        with caplog.at_level(logging.INFO, "gateway.media.web"):
            message = await message_of(got(url, domains, Names(addresses), connector))
        assert not connector.addresses
    async with running(sends(b"")) as host:
        empty = await message_of(fetched(host.url(), "127.0.0.1"))
    closed = await message_of(fetched(host.url(), "127.0.0.1"))
    assert message.replace(url, "") == empty.replace(host.url(), "") == closed.replace(host.url(), "")
    assert "cannot be reached" in message
    assert url not in caplog.text
    for text in [str(addresses)] if isinstance(addresses, Exception) else addresses[-1:]:
        assert text in caplog.text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/", "http://localhost/",
            "http://localhost./"],
)  # fmt: skip
async def test_spellings_of_this_machine_are_not_public(url: str) -> None:
    assert "cannot be reached" in await message_of(fetched(url, "*"))


async def test_a_listed_host_may_have_a_private_address_and_any_port() -> None:
    async with running(OK) as host:
        url = host.url(host="files.internal")
        assert await got(url, ("*", "files.internal"), Names(["127.0.0.1"])) == b"cat"


async def test_the_next_address_is_tried() -> None:
    async with running(OK) as host:  # which listens on 127.0.0.1 only
        url = host.url(host="files.internal")
        assert await got(url, ("files.internal",), Names(["127.0.0.2", "127.0.0.1"])) == b"cat"


@pytest.mark.parametrize(("kind", "seconds"), [(MediaKind.IMAGE, 5), (MediaKind.VIDEO, 30)])
async def test_addresses_that_do_not_answer_share_the_time(kind: MediaKind, seconds: float) -> None:
    async with running(OK) as host:
        names, connector = Names(["93.184.216.34", "93.184.216.35"]), Connector(host.port, ["93.184.216.34"])
        assert await got("http://a.example/", ("*",), names, connector, kind) == b"cat"
        assert connector.timeouts == [seconds / 2] * 2


async def test_addresses_as_hosts() -> None:
    async with running(OK) as host:
        address = "2606:4700:4700::1111"
        assert await got(f"http://[{address}]/", ("*",), Names([address]), Connector(host.port)) == b"cat"
        assert f"Host: [{address}]\r\n" in host.requests[0]


async def test_https_needs_a_certificate_for_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with running(OK, tls) as host:

        async def get(name: str) -> bytes:
            return await got(host.url("/", "https", name), (name,), Names(["127.0.0.1"]))

        assert "cannot be reached" in await message_of(get("localhost"))
        monkeypatch.setattr("certifi.where", lambda: str(tmp_path / "ca.pem"))
        assert await get("localhost") == b"cat"
        assert "cannot be reached" in await message_of(get("other.example"))
        assert len(host.requests) == 1


async def test_an_empty_body() -> None:
    async with running(sends(response(b""))) as host:
        assert "is empty" in await message_of(fetched(host.url(), "127.0.0.1"))
