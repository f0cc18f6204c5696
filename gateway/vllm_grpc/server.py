"""Serves the gRPC service instead of HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import grpc
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from starlette.applications import Starlette

from gateway.background import begin
from gateway.context import GatewayContext
from gateway.vllm_grpc.calls import Calls
from gateway.vllm_grpc.servicer import LEFT_OUT, VllmEngineServicer
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.discovery import join_address
from quire.rpc.server import GrpcServer
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_SERVICE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name
_POLL_SECONDS = 0.05


async def serve_grpc(app: Starlette, context: GatewayContext) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests finish.

    Args:
        app: the application that holds the gateway's components and metrics, whose sessions are up.

    Raises:
        StartupError: the port is taken.
    """
    calls = Calls(app, context)
    server = make_grpc_server(calls, context, context.options.port)
    server.heed_signals()
    await server.start()
    logger.info("serving %s on %s", _SERVICE, join_address(context.options.host, server.port))
    telling = begin(_tell_health(context, server))

    def announce() -> None:
        telling.cancel()
        context.draining = True

    await server.serve_until_stopped(calls.drain, announce)


def make_grpc_server(calls: Calls, context: GatewayContext, port: int) -> GrpcServer:
    """Creates the server, which is not listening yet."""
    options = context.options
    # The address has been checked: callers need a key, or --insecure is set.
    place = GrpcServerOptions(
        options.host, port, insecure=True, drain_settle_seconds=options.drain_settle_seconds,
        drain_timeout_seconds=options.drain_timeout_seconds,
    )  # fmt: skip
    # Keys of callers are checked by the servicer. The token is for calls between the services.
    server = GrpcServer(
        "gateway", _SERVICE, place, RpcSecurityOptions(), calls.app.state.registry, tracer=context.tracer
    )
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(VllmEngineServicer(calls, context), _Registrar(server.server))
    return server


class _Registrar:
    """Takes the service's methods for a server, apart from those that it does not have. gRPC refuses these before
    a call begins; of one that has begun, clients believe that another may succeed."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the same methods come by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """See grpc.aio.Server."""
        kept = {name: handler for name, handler in handlers.items() if name not in LEFT_OUT}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, kept),))
        self._server.add_registered_method_handlers(service, kept)


async def _tell_health(context: GatewayContext, server: GrpcServer) -> None:
    """Keeps the health service up to date, and tells the supervisor what is missing, until cancelled."""
    told: str | None = None
    while True:
        missing = ", ".join(context.missing)
        if missing != told:
            await server.set_serving(not missing)
            if missing:
                report(Stage.WAITING, message=missing)
        told = missing
        await asyncio.sleep(_POLL_SECONDS)
