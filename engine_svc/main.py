"""Entry point of an engine worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from engine_svc.config_formats.registry import find_model_config
from engine_svc.core.log_stats import log_statistics
from engine_svc.core.watchdog import EXIT_ENGINE_DIED, end_process, watch_steps
from engine_svc.executor.base import Executor, create_executor
from engine_svc.executor.external import obey, read_launch
from engine_svc.executor.node import run_node
from engine_svc.model_info import ModelInfo
from engine_svc.service.admin import EngineAdminServicer
from engine_svc.service.encoding import open_media_puller
from engine_svc.service.kv_blocks import open_puller
from engine_svc.service.kv_publisher import KvPublisher
from engine_svc.service.metrics import EngineCollector
from engine_svc.service.registration import FLAG as REGISTRATION_FLAG
from engine_svc.service.registration import Place, keep_registered
from engine_svc.service.servicer import EngineServicer
from engine_svc.worker import EngineWorker, first_of
from quire.errors import StartupError
from quire.log import setup_logging
from quire.metrics import new_registry, serve_metrics
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tracing import TracingOptions
from quire.rpc.discovery import check_addresses
from quire.rpc.server import GrpcServer
from quire.tracing.base import Tracer, open_tracer
from quire.v1 import admin_pb2, admin_pb2_grpc, engine_pb2, engine_pb2_grpc

logger = logging.getLogger(__name__)

GRPC_SERVICE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
_ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["EngineAdminService"].full_name


def main(
    model: ModelOptions,
    engine: EngineOptions,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
    log: LogOptions,
    tracing: TracingOptions = TracingOptions(),
) -> None:
    """Runs a worker until a signal stops it.

    Raises:
        StartupError: the worker cannot serve.
        SystemExit: the engine has died.
    """
    setup_logging("engine", log)
    check_addresses(REGISTRATION_FLAG, engine.registration.register_with)
    engine.parallel.check_nodes()
    if engine.parallel.nodes.node_rank:
        run_node(model, engine)
        return
    if engine.parallel.distributed_executor_backend == "external_launcher":
        launch = read_launch(engine.parallel)
        if launch.rank:
            obey(launch)
            return
    executor = create_executor(engine.parallel, engine.kernels.device, _known_config(model, engine))
    with open_tracer("engine", tracing) as tracer:
        died = uvloop.run(serve(executor, model, engine, server, security, tracer))
    if died:
        sys.exit(EXIT_ENGINE_DIED)


def _known_config(model: ModelOptions, engine: EngineOptions) -> dict[str, Any] | None:
    """The model's configuration, if it is on this machine; errors in it are reported when it is loaded."""
    with contextlib.suppress(StartupError):
        return find_model_config(Path(model.model), engine.form) or None
    return None


async def serve(
    executor: Executor,
    model: ModelOptions,
    engine: EngineOptions,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
    tracer: Tracer | None = None,
) -> bool:
    """Serves from listening until drained; returns whether it ended because the engine died.

    Raises:
        StartupError: the port is in use, or the model cannot be served.
    """
    registry = new_registry()
    pullers = open_puller(engine, security), open_media_puller(engine, security)
    worker = EngineWorker(executor, model, engine, *pullers)
    grpc_server = build_server(worker, server, security, registry, tracer)
    await grpc_server.start()
    serve_metrics(registry, server.metrics_host, server.metrics_port)
    serving: asyncio.Future[None] = asyncio.create_task(grpc_server.serve_until_stopped(worker.drain))
    loading: asyncio.Future[ModelInfo] = asyncio.create_task(worker.load())
    try:
        await first_of(serving, loading)
        if not loading.done():  # stopped before the model was there
            return False
        await grpc_server.set_serving(True)
        logger.info("serving on %s:%d", server.host, grpc_server.port)
        async with _companions(worker, grpc_server, engine, server, security):
            await first_of(serving, worker.loop.died)
        return worker.loop.died.done()
    finally:
        for task in (serving, loading):
            task.cancel()
        await grpc_server.server.stop(grace=0.5)
        await worker.stop()


def build_server(
    worker: EngineWorker,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
    registry: CollectorRegistry,
    tracer: Tracer | None = None,
) -> GrpcServer:
    """Builds the worker's gRPC server, which does not listen yet, and registers its metrics."""
    grpc_server = GrpcServer("engine", GRPC_SERVICE, server, security, registry, (_ADMIN_SERVICE,), tracer)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(EngineServicer(worker, tracer), grpc_server.server)
    admin_pb2_grpc.add_EngineAdminServiceServicer_to_server(EngineAdminServicer(worker), grpc_server.server)
    registry.register(EngineCollector(worker.load_now))
    return grpc_server


@contextlib.asynccontextmanager
async def _companions(
    worker: EngineWorker,
    grpc_server: GrpcServer,
    engine: EngineOptions,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
) -> AsyncIterator[None]:
    """Runs the background tasks of a serving worker: the step watchdog, the log of statistics, the registrations and
    the KV publisher.

    Raises:
        StartupError: see KvPublisher.
    """
    place = Place(server.host, grpc_server.port, engine.registration.advertise_address, security.tls)
    jobs = [watch_steps(worker.loop.step_age, engine.watchdog, grpc_server.set_serving, end_process)]
    jobs.append(keep_registered(engine.registration.register_with, place, security))
    if (interval := engine.log_stats.log_stats_interval_seconds) > 0:
        jobs.append(log_statistics(worker.load_now, interval))
    if (events := engine.cache.events()).is_on:
        jobs.append(KvPublisher(events, worker).run())
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
