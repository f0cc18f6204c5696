"""Mutual TLS between the services, with certificates that may be renewed while they are in use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grpc

from quire.certificates import Certificates, load_certificates, use
from quire.options.server import RpcSecurityOptions
from quire.watched_files import WatchedFiles

_OF_SERVICES = "certificates of the services"
_KINDS_OF_CALLS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class _Files:
    """The files of `--grpc-tls-certfile` and the options beside it."""

    def __init__(self, security: RpcSecurityOptions) -> None:
        self._paths = security.tls_files
        self._files = WatchedFiles(_OF_SERVICES, self._paths, self._load)
        self._load()

    def latest(self) -> Certificates:
        """What they hold, or what they last held that could be used; the same object until they change."""
        self._files.refresh()
        return self._latest

    def _load(self) -> None:
        self._latest = use(_OF_SERVICES, load_certificates("--grpc-tls", *self._paths))


@functools.cache
def _files_of(security: RpcSecurityOptions) -> _Files:
    """The files, which all channels and servers of a process watch together.

    Raises:
        StartupError: they cannot be used.
    """
    return _Files(security)


def server_credentials(security: RpcSecurityOptions) -> grpc.ServerCredentials:
    """Credentials for a server: peers without a certificate from the deployment's authority are refused. Each new
    connection uses the files as they are then.

    Raises:
        StartupError: the files cannot be used.
    """
    files = _files_of(security)
    used = files.latest()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None means that nothing has changed."""
        nonlocal used
        if (latest := files.latest()) is used:
            return None
        used = latest
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), fetch, require_client_authentication=True)


def _configuration(of: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(of.key, of.certificate)], of.authorities)


class RenewingChannel:
    """A gRPC channel that is opened anew once the files were replaced, for the calls that begin after that. Earlier
    calls keep their connection, which is closed after the last of them."""

    def __init__(
        self, security: RpcSecurityOptions, open_with: Callable[[grpc.ChannelCredentials], grpc.aio.Channel]
    ) -> None:
        """
        Raises:
            StartupError: the files cannot be used.
        """
        self._files = _files_of(security)
        self._open_with = open_with
        self._used: Certificates | None = None
        self._channel = self._current()

    def __getattr__(self, name: str) -> Any:
        if name in _KINDS_OF_CALLS:
            return functools.partial(self._method, name)
        return getattr(self._channel, name)

    async def __aenter__(self) -> RenewingChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def _method(self, kind: str, *method: Any, **options: Any) -> Callable[..., Any]:
        """See the methods of grpc.aio.Channel named in _KINDS_OF_CALLS."""
        return lambda *request, **rest: getattr(self._current(), kind)(*method, **options)(*request, **rest)

    def _current(self) -> grpc.aio.Channel:
        if (latest := self._files.latest()) is not self._used:
            self._used = latest
            credentials = grpc.ssl_channel_credentials(latest.authorities, latest.key, latest.certificate)
            self._channel = self._open_with(credentials)  # a channel that is only dropped does not end its calls
        return self._channel
