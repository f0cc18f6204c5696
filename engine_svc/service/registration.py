"""Registers the worker with routers and keeps the leases alive."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass

import grpc

from quire.errors import NotFound, QuireError
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.discovery import join_address, own_address_towards, split_address
from quire.rpc.settings import CONNECT_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import router_pb2, router_pb2_grpc

logger = logging.getLogger(__name__)

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


async def keep_registered(router: str, place: Place, security: RpcSecurityOptions) -> None:
    """Registers with one router, renews the lease and registers again if the router forgot it, until canceled."""
    failures = 0
    async with open_channel(router, security) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        while True:
            try:
                address = await asyncio.to_thread(place.seen_from, router)
                lease, lease_seconds = await _register(stub, address, security)
                logger.info("registered with router %s as %s", router, address)
                failures = 0
                await _renew(stub, lease, lease_seconds, security)
            except NotFound:
                logger.info("router %s no longer knows this worker; registering again", router)
            except (QuireError, OSError) as error:
                level = logging.WARNING if failures == 0 else logging.DEBUG
                logger.log(level, "router %s: %s; trying again", router, error)
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1


async def _register(
    stub: router_pb2_grpc.RouterServiceStub, address: str, security: RpcSecurityOptions
) -> tuple[str, float]:
    """Registers the worker; returns the lease id and its duration in seconds."""
    try:
        answer = await stub.RegisterWorker(
            router_pb2.RegisterWorkerRequest(address=address), timeout=CONNECT_SECONDS, metadata=call_metadata(security)
        )
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    return answer.lease_id, answer.lease_ms / 1000


async def _renew(
    stub: router_pb2_grpc.RouterServiceStub, lease: str, lease_seconds: float, security: RpcSecurityOptions
) -> None:
    """Renews the lease until that fails.

    Raises:
        QuireError: the reason; NotFound if the router no longer knows the lease.
    """
    while True:
        await asyncio.sleep(max(0.05, lease_seconds / 3))
        try:
            answer = await stub.Heartbeat(
                router_pb2.HeartbeatRequest(lease_id=lease), timeout=CONNECT_SECONDS, metadata=call_metadata(security)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        lease_seconds = answer.lease_ms / 1000
