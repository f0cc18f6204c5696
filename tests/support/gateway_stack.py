"""A gateway over real sockets in the test's own process: real router, real tokenizer service, fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import httpx
import uvicorn

from benchmarks.models import TEMPLATE, byte_tokenizer
from gateway.context import GatewayContext
from gateway.main import make_context, make_server
from quire.metrics import new_registry
from quire.options.gateway import GatewayOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.server import GrpcServer
from quire.tokenizer.files import read_tokenizer_files
from quire.tokenizer.modes import TokenizerPlace
from quire.tracing.base import Tracer
from quire.v1 import tokenizer_pb2_grpc
from router.app import Router
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc.constraint_compiler import ConstraintCompiler
from tokenizer_svc.main import choose_templates
from tokenizer_svc.media import MediaPreparer
from tokenizer_svc.metrics import TokenizerMetrics
from tokenizer_svc.renderer import ChatRenderer
from tokenizer_svc.service import TokenizerServicer

SECURITY = RpcSecurityOptions()
DOCUMENTS = "{% for document in documents or () %}{{ document.text }}\n{% endfor %}"


@dataclass
class Gateway:
    """A gateway, for tests to talk to and inspect."""

    context: GatewayContext
    client: httpx.AsyncClient
    port: int

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion; the prompt [65] makes the fake engine say 65, 72, 79, ..."""
        response = await self.post("/v1/completions", {"model": "fake", "prompt": [65], "max_tokens": 3} | fields)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The content of each server-sent event; the last is the string [DONE]."""
        response = await self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        contents = [line.removeprefix("data: ") for line in lines]
        return [json.loads(content) if content != "[DONE]" else content for content in contents]


@dataclass
class GatewayStack(Gateway):
    """A gateway and the services behind it."""

    engine: FakeEngine
    router: Router
    tokenizer: RunningTokenizer


@contextlib.asynccontextmanager
async def running_gateway(
    folder: Path,
    engine_options: FakeOptions | None = None,
    router_options: Any = MappingProxyType({}),
    tracer: Tracer | None = None,
    tokenizer_options: TokenizerOptions | None = None,
    security: RpcSecurityOptions = SECURITY,
    **options: Any,
) -> AsyncIterator[GatewayStack]:
    """A stack that serves one model, `fake`. The options are those of the gateway.

    Args:
        folder, tokenizer_options: see `running_tokenizer`.
        security: of the gateway; the other services let everyone call.
    """
    async with contextlib.AsyncExitStack() as stack:
        engine = await FakeEngine(engine_options or FakeOptions(step_seconds=0.001)).start()
        stack.push_async_callback(engine.close)
        router = Router(
            RouterOptions(workers=(engine.address,), **router_options), GrpcServerOptions(), SECURITY,
            tracer=tracer,
        )  # fmt: skip
        await router.start()
        stack.push_async_callback(router.close)
        tokenizer = await stack.enter_async_context(running_tokenizer(folder, tracer, tokenizer_options))
        front = await stack.enter_async_context(
            gateway_before(
                [f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"], tracer, security, **options
            )
        )
        yield GatewayStack(front.context, front.client, front.port, engine, router, tokenizer)


@contextlib.asynccontextmanager
async def gateway_before(
    routers: Sequence[str],
    tokenizers: Sequence[str],
    tracer: Tracer | None = None,
    security: RpcSecurityOptions = SECURITY,
    **options: Any,
) -> AsyncIterator[Gateway]:
    """A gateway without other services, once it is ready."""
    chosen = GatewayOptions(
        router_address=tuple(routers), tokenizer_address=tuple(tokenizers), **options
    )  # fmt: skip
    context = make_context(chosen, security, tracer)
    limits = httpx.Limits(max_connections=300)
    async with (
        serving(make_server(context)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS, limits=limits) as client,
    ):
        await eventually(lambda: context.ready, "the gateway does not become ready")
        yield Gateway(context, client, port)


def save_tokenizer(folder: Path) -> None:
    """Saves a tokenizer in the folder if it has none."""
    if not (folder / "tokenizer.json").exists():
        byte_tokenizer(8192).save_pretrained(folder)


@dataclass
class RunningTokenizer:
    server: grpc.aio.Server
    port: int
    servicer: TokenizerServicer

    @property
    def num_streams(self) -> int:
        """Number of open streams."""
        return sum(session.num_streams for session in self.servicer.sessions)


@contextlib.asynccontextmanager
async def running_tokenizer(
    folder: Path, tracer: Tracer | None = None, tokenizer_options: TokenizerOptions | None = None
) -> AsyncIterator[RunningTokenizer]:
    """A tokenizer service; a tokenizer is saved in the folder if it has none.

    Args:
        tokenizer_options: with them, it also has the folder's chat template.
    """
    save_tokenizer(folder)
    options = tokenizer_options or TokenizerOptions()
    files = read_tokenizer_files(folder)
    renderer = ChatRenderer(
        choose_templates(files, options) if tokenizer_options else {"default": DOCUMENTS + TEMPLATE}, {},
        timeout_seconds=5, max_chars=100_000, content_format=options.chat_template_content_format,
    )  # fmt: skip
    images = MediaPreparer(folder, options.images)
    await asyncio.gather(renderer.start(), images.start())
    registry = new_registry()
    server = GrpcServer(
        "tokenizer", "quire.v1.TokenizerService", GrpcServerOptions(), SECURITY, registry, tracer=tracer
    )
    compiler = ConstraintCompiler(TokenizerPlace("auto", "", str(folder)), options.structured_outputs)
    servicer = TokenizerServicer("tiny", files, renderer, compiler, images, options, TokenizerMetrics(registry))
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, server.server)
    await server.start()
    try:
        yield RunningTokenizer(server.server, server.port, servicer)
    finally:
        await server.server.stop(None)
        await renderer.close()
        await compiler.close()
        await images.close()


@contextlib.asynccontextmanager
async def serving(server: uvicorn.Server) -> AsyncIterator[int]:
    """Runs the server on a free port."""
    # With the protocol named, asyncio sends data immediately (TCP_NODELAY); otherwise it waits for acknowledgments.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started, "uvicorn does not start")
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
