"""The gRPC server of every Quire service: health, reflection, InfoService, interceptors, graceful drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

import quire
from quire.errors import StartupError
from quire.metrics import FilesCollector
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.discovery import join_address
from quire.rpc.interceptors import ServerInterceptor
from quire.rpc.local.server import LocalServer
from quire.rpc.settings import SERVER_ARGUMENTS
from quire.rpc.tls import server_credentials
from quire.supervised import Stage, report
from quire.tracing.base import Tracer
from quire.v1 import common_pb2, common_pb2_grpc

logger = logging.getLogger(__name__)

_INFO_SERVICE = common_pb2.DESCRIPTOR.services_by_name["InfoService"].full_name


class InfoServicer(common_pb2_grpc.InfoServiceServicer):
    """Identifies this process."""

    def __init__(self, service: str, grpc_services: Sequence[str]) -> None:
        self._answer = common_pb2.GetServerInfoResponse(
            service=service, version=quire.__version__, instance_id=uuid.uuid4().hex,
            start_time_seconds=time.time(), grpc_services=grpc_services,
        )  # fmt: skip

    async def GetServerInfo(
        self, request: common_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.GetServerInfoResponse:
        return self._answer


class GrpcServer:
    """One service's server, from listening to drained.

    Life cycle: construct, register servicers on `server`, `start()` (listens, health NOT_SERVING), `heed_signals()`,
    `set_serving(True)` when ready, `serve_until_stopped()`. After SIGTERM or SIGINT: health NOT_SERVING, go on
    accepting for `drain_settle_seconds`, `drain()` with `drain_timeout_seconds`, stop. A second signal stops at once.
    """

    def __init__(
        self,
        service: str,
        grpc_service: str,
        options: GrpcServerOptions,
        security: RpcSecurityOptions,
        registry: CollectorRegistry,
        further: Sequence[str] = (),
        tracer: Tracer | None = None,
    ) -> None:
        """
        Args:
            service: short name, such as "router".
            grpc_service: fully qualified name of the gRPC service, under which health is queried.
            further: names of other services on the same server.
        """
        options.check(security)
        registry.register(FilesCollector())
        self._options = options
        self._security = security
        self._names = (grpc_service, *further, _INFO_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._health = health.aio.HealthServicer()
        self._stop = asyncio.Event()
        self._signals = 0
        self.port = 0
        interceptor = ServerInterceptor(security, registry, tracer)
        self.server = LocalServer(
            grpc.aio.server(interceptors=[interceptor], options=SERVER_ARGUMENTS), interceptor.wrap
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        common_pb2_grpc.add_InfoServiceServicer_to_server(InfoServicer(service, self._names), self.server)
        reflection.enable_server_reflection(self._names, self.server)

    async def start(self) -> None:
        """Starts listening.

        Raises:
            StartupError: the port is taken or the address is not this machine's, or the TLS files cannot be used.
        """
        address = join_address(self._options.host, self._options.port)
        try:
            if self._security.tls:
                self.port = self.server.add_secure_port(address, server_credentials(self._security))
            else:
                self.port = self.server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartupError(
                f"Cannot listen on {address}: the port is in use. Choose another with --port."
            ) from error
        await self.set_serving(False)
        await self.server.start()

    async def set_serving(self, serving: bool) -> None:
        """Sets the health of the service and of the whole server, and notifies the supervisor."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)
        if serving:
            report(Stage.READY)

    def heed_signals(self) -> None:
        """From now on SIGTERM and SIGINT start the drain instead of ending the process. Call it before reporting
        readiness. May be called twice."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop_soon)

    def stop_soon(self) -> None:
        """Starts the drain, like SIGTERM; the second time, stops at once."""
        self._signals += 1
        self._stop.set()

    async def serve_until_stopped(
        self, drain: Callable[[], Awaitable[None]], announce: Callable[[], None] = lambda: None
    ) -> None:
        """Serves until a signal arrives, then drains and stops.

        Args:
            drain: returns once no request is running any more.
            announce: called first of all, to tell callers that hold a session.
        """
        self.heed_signals()
        await self._stop.wait()
        announce()
        await self._health.enter_graceful_shutdown()
        draining = asyncio.ensure_future(self._drain(drain))
        while not draining.done() and self._signals < 2:
            await asyncio.wait([draining], timeout=0.1)
        draining.cancel()
        await self.server.stop(grace=0.5)

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._options.drain_settle_seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drain(), self._options.drain_timeout_seconds)
            return
        logger.warning("drain timed out after %.0f s; ending what still runs", self._options.drain_timeout_seconds)
