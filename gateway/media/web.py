"""Images, videos and audio from other hosts: `https://images.example.com/cat.png`.

Requests are made with httpcore, which follows no redirects, keeps no cookies, knows no proxies and decompresses
nothing, so that none of it has to be turned off.
"""

from __future__ import annotations

import asyncio
import logging
import re
from types import MappingProxyType

import httpcore
import httpx

from gateway.media.addresses import AllowedHosts
from gateway.media.kinds import NOUNS
from gateway.media.network import CheckedNetwork, Resolve, SystemResolver
from gateway.media.source import MediaSource
from quire.media import MediaKind
from quire.options.media import MediaOptions

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 8
_MAX_URL_CHARACTERS = 8192
_UNSAFE = re.compile(r"[\\\s\x00-\x1f\x7f-\x9f]")
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_ACCEPTED = MappingProxyType({
    MediaKind.IMAGE: "image/*", MediaKind.VIDEO: "video/*, image/*", MediaKind.AUDIO: "audio/*",
})  # fmt: skip
_HEADERS = (("User-Agent", "quire"), ("Accept-Encoding", "identity"), ("Connection", "close"))


class WebMedia:
    """Fetches images, videos and audio from allowed hosts, a few at a time."""

    def __init__(
        self,
        options: MediaOptions,
        resolve: Resolve | None = None,
        connector: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """
        Args:
            resolve: looks up names; by default, the system does.
            connector: connects to addresses that are allowed.
        """
        self._hosts = AllowedHosts.of(options.allowed_media_domains)
        self._seconds = {
            MediaKind.IMAGE: options.image_fetch_timeout_seconds, MediaKind.VIDEO: options.video_fetch_timeout_seconds,
            MediaKind.AUDIO: options.audio_fetch_timeout_seconds,
        }  # fmt: skip
        self._resolver = SystemResolver(MAX_CONNECTIONS)
        self._network = CheckedNetwork(
            self._hosts, resolve or self._resolver.resolve, connector or httpcore.AnyIOBackend()
        )
        self._tls = httpx.create_ssl_context(trust_env=False)
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def get(self, source: MediaSource) -> bytes:
        """Returns the body of the response. The time limit begins once there is a free connection.

        Raises:
            InvalidRequest: the URL is malformed, its host not allowed or not reached, or the response is not an
                uncompressed body of acceptable size with status 200; or it takes too long.
        """
        url, seconds = self._checked(source), self._seconds[source.kind]
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    return await self._body(source, url, seconds)
            except (TimeoutError, httpcore.TimeoutException):
                raise source.error(
                    f"({source.shown}) did not arrive within {seconds:g} s (--{source.kind}-fetch-timeout-seconds). "
                    "Try again, or send it as a data: URL."
                ) from None
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
                # What went wrong is for the operator only: it would tell callers which hosts and ports exist.
                logger.info("%s could not be fetched from %r: %s", NOUNS[source.kind], _host(url), error)
                raise source.error(
                    f"({source.shown}) cannot be reached: its host must answer HTTP, and have a public address or be "
                    f"listed by name in --allowed-media-domains. Check the URL, or send the {source.kind} as a data: "
                    "URL."
                ) from None

    async def close(self) -> None:
        """Ends what fetching needs."""
        self._resolver.close()

    def _checked(self, source: MediaSource) -> httpx.URL:
        """
        Raises:
            InvalidRequest: the URL is malformed, or its host is not allowed.
        """
        if len(source.url) > _MAX_URL_CHARACTERS:
            raise source.error(
                f"has a URL of {len(source.url)} characters; at most {_MAX_URL_CHARACTERS} are allowed. Shorten it, "
                f"or send the {source.kind} as a data: URL."
            )
        if _UNSAFE.search(source.url):
            raise source.error(
                f"({source.shown}) has a backslash, white space or a control character in its URL. Percent-encode it."
            )
        try:
            url = httpx.URL(source.url)
            is_valid = 0 < _port(url) < 2**16
        except (httpx.InvalidURL, ValueError):
            is_valid = False
        if not is_valid:
            raise source.error(f"({source.shown}) is not a valid URL. Correct it.")
        if url.userinfo:
            raise source.error("has a user name or password in its URL. Leave it out, and use a URL that needs none.")
        if not url.raw_host:
            raise source.error(f"({source.shown}) has no host in its URL. Write it as https://host/path.")
        if not self._hosts.allow(_host(url), _port(url)):
            raise source.error(
                f"({source.shown}) is on a host or port that --allowed-media-domains does not allow. Send it as a "
                "data: URL, or ask the operator to list the host."
            )
        return url

    async def _body(self, source: MediaSource, url: httpx.URL, seconds: float) -> bytes:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=_port(url), target=url.raw_path)
        accepted = _ACCEPTED[source.kind]
        headers: list[tuple[str | bytes, str | bytes]] = [("Host", url.netloc), ("Accept", accepted), *_HEADERS]
        extensions = {"timeout": {"connect": seconds}}
        # A pool of its own for each request: no connection is left for another one, even if this one is canceled.
        pool = httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=self._network)
        async with pool, pool.stream("GET", target, headers=headers, extensions=extensions) as response:
            _check_head(source, response)
            chunks, size = [], 0
            async for chunk in response.aiter_stream():
                size += len(chunk)
                if size > source.most_bytes:
                    raise source.too_large()
                chunks.append(chunk)
                await asyncio.sleep(0)  # thousands of tiny chunks may arrive at once
        return b"".join(chunks)


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii")  # `url.host` fails for some names in Punycode


def _port(url: httpx.URL) -> int:
    return _PORTS[url.scheme] if url.port is None else url.port


def _check_head(source: MediaSource, response: httpcore.Response) -> None:
    """Checks status and headers.

    Raises:
        InvalidRequest: the body is not the file itself, or too large.
    """
    if response.status in _REDIRECTS:
        raise source.error(
            f"({source.shown}) is redirected (status {response.status}), which is not followed. Send the final URL."
        )
    if response.status != 200:
        raise source.error(
            f"({source.shown}) was answered with status {response.status} instead of 200. Check the URL."
        )
    headers = {name.lower(): value for name, value in response.headers}
    if headers.get(b"content-encoding", b"identity").lower() not in (b"", b"identity"):
        raise source.error(
            f"({source.shown}) is sent compressed (Content-Encoding), which is not accepted. Send it as a data: URL."
        )
    if int(headers.get(b"content-length", b"0")) > source.most_bytes:
        raise source.too_large()
