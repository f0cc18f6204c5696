"""Makes the worker known to routers and keeps the leases alive."""

from __future__ import annotations

import asyncio
import logging
import socket

import grpc

from quire.errors import NotFound, QuireError
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CONNECT_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import router_pb2, router_pb2_grpc

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]", "")  # noqa: S104  compared with, not bound to


def advertised_address(host: str, port: int, advertise: str | None) -> str:
    """host:port under which routers reach this worker.

    Args:
        host: that the server listens on; all interfaces are advertised by the machine's name.
        advertise: what the options say; wins.
    """
    if advertise:
        return advertise
    return f"{socket.gethostname() if host in _ANY_ADDRESS else host}:{port}"


async def keep_registered(router: str, address: str, security: RpcSecurityOptions) -> None:
    """Until cancelled: registers with one router, renews the lease, registers again when the router forgot it."""
    failures = 0
    async with open_channel(router, security) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        while True:
            try:
                lease, lease_seconds = await _register(stub, address, security)
                logger.info("registered with router %s as %s", router, address)
                failures = 0
                await _renew(stub, lease, lease_seconds, security)
            except NotFound:
                logger.info("router %s does not know this worker any more; registering again", router)
            except QuireError as error:
                level = logging.WARNING if failures == 0 else logging.DEBUG
                logger.log(level, "router %s: %s; trying again", router, error)
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1


async def _register(
    stub: router_pb2_grpc.RouterServiceStub, address: str, security: RpcSecurityOptions
) -> tuple[str, float]:
    """(lease, its seconds)."""
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
    """Renews until it fails.

    Raises:
        QuireError: why; NotFound when the lease is not known any more.
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
