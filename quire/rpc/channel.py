"""Client side: channels to other services, and the metadata of their calls."""

from __future__ import annotations

import functools

import grpc

from quire.options.server import RpcSecurityOptions
from quire.rpc.context import outgoing_metadata
from quire.rpc.local.channel import LocalChannel
from quire.rpc.local.place import place_of
from quire.rpc.settings import CHANNEL_ARGUMENTS
from quire.rpc.tls import RenewingChannel


def open_channel(address: str, security: RpcSecurityOptions, server_name: str = "") -> grpc.aio.Channel:
    """Opens a channel to host:port with the deployment's keepalive and TLS settings. It connects on first use.

    Args:
        server_name: name on the peer's certificate, if that is not the host because `address` was resolved from a name.

    Raises:
        StartupError: the TLS files cannot be used.
    """
    if not security.tls:
        return grpc.aio.insecure_channel(address, options=CHANNEL_ARGUMENTS)
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    options = (*CHANNEL_ARGUMENTS, *named)
    return RenewingChannel(security, functools.partial(grpc.aio.secure_channel, address, options=options))


def session_channel(channel: grpc.aio.Channel, address: str, security: RpcSecurityOptions) -> grpc.aio.Channel:
    """The channel for a `SessionLink`'s calls: to a server on this machine, its frames go over a Unix socket.

    Args:
        channel: a channel to the address.
    """
    place = "" if security.tls else place_of(address)
    return LocalChannel(channel, place) if place else channel


def call_metadata(security: RpcSecurityOptions) -> tuple[tuple[str, str], ...]:
    """Metadata of an outgoing call: the shared token, the current request's id and its trace."""
    token = security.grpc_token
    return (*((("authorization", f"Bearer {token}"),) if token else ()), *outgoing_metadata())
