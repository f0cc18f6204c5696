"""A real engine worker on a real socket, over the fake executor."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from engine_svc.executor.base import Executor
from engine_svc.main import build_server
from engine_svc.service.encoding import open_media_puller
from engine_svc.service.kv_blocks import open_puller
from engine_svc.worker import EngineWorker
from quire.options.model import ModelOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.rpc.server import GrpcServer
from quire.tracing.base import Tracer
from quire.v1 import engine_pb2_grpc
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


@dataclass(frozen=True)
class RunningEngine:
    """An engine worker of this process."""

    worker: EngineWorker
    server: GrpcServer
    address: str  # host:port
    channel: grpc.aio.Channel
    stub: Any  # EngineServiceStub
    registry: CollectorRegistry


@contextlib.asynccontextmanager
async def running_engine(
    executor: Executor | None = None,
    model: ModelOptions | None = None,
    port: int = 0,
    load: bool = True,
    tracer: Tracer | None = None,
    security: RpcSecurityOptions = RpcSecurityOptions(),
    **options: Any,
) -> AsyncIterator[RunningEngine]:
    """Serves until left; then everything must be freed.

    Args:
        options: fields of EngineOptions.
    """
    registry = CollectorRegistry()
    model = model or ModelOptions(model=str(Path(__file__).parent), served_model_name=("fake",))
    chosen = engine_options(**({"generation_config": "vllm"} | options))
    pullers = open_puller(chosen, security), open_media_puller(chosen, security)
    worker = EngineWorker(executor or FakeExecutor(), model, chosen, *pullers)
    server = build_server(worker, GrpcServerOptions(port=port), security, registry, tracer)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        if load:
            await worker.load()
            await server.set_serving(True)
        async with open_channel(address, security) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            yield RunningEngine(worker, server, address, channel, stub, registry)
    finally:
        await server.server.stop(grace=0)
        if load:
            await worker.stop()
