"""Registers the worker with routers and keeps the leases alive."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from quire.errors import NotFound, QuireError
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.discovery import Resolver, join_address, own_address_towards, resolve_host, split_address
from quire.rpc.peers import NamedPeers
from quire.rpc.settings import CONNECT_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import router_pb2, router_pb2_grpc

logger = logging.getLogger(__name__)

FLAG = "--register-with"
_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]", "")  # noqa: S104  compared with, not bound to


@dataclass(frozen=True)
class Place:
    """Address that a worker listens on.

    Attributes:
        advertise: address to advertise, from the options; takes precedence.
        has_tls: whether the server uses TLS: its certificate is then for the machine's host name.
    """

    host: str
    port: int
    advertise: str | None = None
    has_tls: bool = False

    def seen_from(self, router: str) -> str:
        """host:port under which a router reaches this worker; when it listens on all, that of the interface used.

        The machine's host name is only used with TLS, because few peers can resolve it, and none that of a pod.

        Raises:
            OSError: there is no route to the router.
        """
        if self.advertise:
            return self.advertise
        if self.host not in _ANY_ADDRESS:
            return join_address(self.host, self.port)
        if self.has_tls:
            return f"{socket.gethostname()}:{self.port}"
        return join_address(own_address_towards(*split_address(router)), self.port)


async def keep_registered(
    routers: Sequence[str], place: Place, security: RpcSecurityOptions, resolve: Resolver = resolve_host
) -> None:
    """Keeps the worker registered with all routers until canceled.

    Args:
        routers: host:port; if the host is a name, each address it resolves to is a router.
    """

    def make(address: str, name: str) -> _Registration:
        return _Registration(address, name, place, security)

    await NamedPeers(FLAG, routers, make, resolve).run()


class _Registration:
    """The registration with one router."""

    busy = False  # a router that the name no longer resolves to is left at once

    def __init__(self, router: str, server_name: str, place: Place, security: RpcSecurityOptions) -> None:
        """
        Args:
            server_name: the host name the router was found by, if any, which its certificate must match.
        """
        self.address = router
        self.retired = False
        self._place = place
        self._security = security
        self._channel = open_channel(router, security, server_name)
        self._stub = router_pb2_grpc.RouterServiceStub(self._channel)

    async def run(self) -> None:
        """Registers, renews the lease and registers again if the router forgot it, until canceled."""
        failures = 0
        async with self._channel:
            while True:
                try:
                    address = await asyncio.to_thread(self._place.seen_from, self.address)
                    lease, lease_seconds = await self._register(address)
                    logger.info("registered with router %s as %s", self.address, address)
                    failures = 0
                    await self._renew(lease, lease_seconds)
                except NotFound:
                    logger.info("router %s no longer knows this worker; registering again", self.address)
                except (QuireError, OSError) as error:
                    level = logging.WARNING if failures == 0 else logging.DEBUG
                    logger.log(level, "router %s: %s; trying again", self.address, error)
                    await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                    failures += 1

    async def _register(self, address: str) -> tuple[str, float]:
        """Registers the worker; returns the lease id and its duration in seconds."""
        request = router_pb2.RegisterWorkerRequest(address=address)
        answer = await self._call(self._stub.RegisterWorker, request)
        return answer.lease_id, answer.lease_ms / 1000

    async def _renew(self, lease: str, lease_seconds: float) -> None:
        """Renews the lease until that fails.

        Raises:
            QuireError: the reason; NotFound if the router no longer knows the lease.
        """
        while True:
            await asyncio.sleep(max(0.05, lease_seconds / 3))
            answer = await self._call(self._stub.Heartbeat, router_pb2.HeartbeatRequest(lease_id=lease))
            lease_seconds = answer.lease_ms / 1000

    async def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return await method(request, timeout=CONNECT_SECONDS, metadata=call_metadata(self._security))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
