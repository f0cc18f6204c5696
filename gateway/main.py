"""Entry point of the gateway process: startup, graceful shutdown, and the HTTP server configuration."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from uvicorn.config import LOG_LEVELS

from gateway.access_log import AccessLogFilter
from gateway.api_keys import ApiKeys
from gateway.app import create_admin_app, create_app
from gateway.background import begin
from gateway.certificates import Certificates, use_certificates
from gateway.context import GatewayContext
from gateway.errors import stopping
from gateway.http_protocol import limited_protocol
from gateway.media.conversations import ConversationMedia
from gateway.pipeline import Pipeline
from gateway.reasoning_parsers.registry import chosen_reasoning_parser, closing_text
from gateway.requests.kv_transfer import KvTransferKey
from gateway.requests.request_log import RequestLog
from gateway.requests.statistics import RequestStatistics
from gateway.requests.traces import RequestTraces
from gateway.response_store.open import open_store
from gateway.response_store.records import Responses
from gateway.services.fleet import Fleet
from gateway.services.reasoning import ReasoningFormat
from gateway.services.router_streams import FLAG as ROUTER_FLAG
from gateway.services.speech import SpeechFormats
from gateway.services.tokenizer import Tokenizer
from gateway.services.tokenizers import FLAG as TOKENIZER_FLAG
from gateway.tool_parsers.registry import chosen_tool_parser
from quire.errors import StartupError
from quire.log import setup_logging
from quire.open_files import BESIDE_CONNECTIONS, allow_open_files
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.server import RpcSecurityOptions
from quire.options.tracing import TracingOptions
from quire.rpc.discovery import check_addresses, join_address
from quire.seeds import SeedSource
from quire.supervised import Stage, report
from quire.tracing.base import Tracer, open_tracer
from quire.unix_socket import unix_listener
from quire.work_pool import WorkPool

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_MAX_WEBSOCKET_MESSAGE = 2**20  # bytes: 24 s of audio in base64
# Longer than clients and proxies keep an idle connection (httpx 5 s, aiohttp 15 s, most proxies 60 s). A server that
# closes it first may do so just as the client sends its next request, and that request is lost.
_KEEP_ALIVE_SECONDS = 75
# Time for cancelled requests to send their error, and for clients to receive it.
_LAST_WORDS_SECONDS = 2.0
_LOGGERS_OF_HTTP = ("uvicorn.error", "uvicorn.access", "uvicorn.asgi")


def main(
    gateway: GatewayOptions, security: RpcSecurityOptions, log: LogOptions, tracing: TracingOptions = TracingOptions()
) -> None:
    """Serves until SIGTERM or SIGINT, then drains in-flight requests; a second signal cuts the drain short.

    Raises:
        StartupError: the options contradict each other, or the port is taken.
    """
    setup_logging("gateway", log)
    logging.getLogger("uvicorn.access").addFilter(AccessLogFilter(gateway.disable_access_log_for_endpoints))
    for name in _LOGGERS_OF_HTTP:
        if (http_logger := logging.getLogger(name)).level == logging.NOTSET:  # --log-config-file may have set it
            http_logger.setLevel(LOG_LEVELS[gateway.uvicorn_log_level])
    gateway.check()
    security.check()
    check_addresses(ROUTER_FLAG, gateway.router_address)
    check_addresses(TOKENIZER_FLAG, gateway.tokenizer_address)
    admin = gateway.admin
    admin_listener = _listen(admin.admin_host, admin.admin_port, "--admin-port") if admin.admin_port else None
    if gateway.server_dev_mode:
        logger.warning(
            "--server-dev-mode: anyone who can reach %s can pause the engines, put them to sleep and abort requests; "
            "--admin-port serves these routes on a separate port", gateway.uds or f"port {gateway.port}",
        )  # fmt: skip
    gateway = _with_connections_that_fit(gateway)
    with open_tracer("gateway", tracing) as tracer:
        if gateway.grpc:
            uvloop.run(_serve_grpc(gateway, security, tracer, admin_listener))
        else:
            with _listener(gateway) as listener:
                uvloop.run(_serve(gateway, security, tracer, listener, admin_listener))


def _with_connections_that_fit(options: GatewayOptions) -> GatewayOptions:
    """Raises the limit on open files for --max-connections, or else lowers that: further connections then get 503, as
    they should, instead of a reset by the system."""
    allowed = allow_open_files(options.max_connections + BESIDE_CONNECTIONS)
    fitting = max(allowed - BESIDE_CONNECTIONS, allowed // 2)
    if fitting >= options.max_connections:
        return options
    logger.warning(
        "only %d files may be open, so there are at most %d connections instead of --max-connections %d: raise the "
        "limit (ulimit -n %d)", allowed, fitting, options.max_connections, options.max_connections + BESIDE_CONNECTIONS,
    )  # fmt: skip
    return dataclasses.replace(options, max_connections=fitting)


def _listener(options: GatewayOptions) -> contextlib.AbstractContextManager[socket.socket]:
    """Opens the socket that clients connect to: an inherited descriptor, a Unix socket, or a TCP port."""
    if options.uds_descriptor is not None:
        return socket.socket(fileno=options.uds_descriptor)
    if options.uds:
        return unix_listener(options.uds)
    return _listen(options.host, options.port, "--port or --host", shares=bool(options.shared_port_folder))


def _listen(host: str, port: int, flags: str, *, shares: bool = False) -> socket.socket:
    """
    Args:
        flags: the options named in the error message when the address cannot be bound.
        shares: whether other processes of this server bind the same port; each gets a share of the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise StartupError(f"Cannot listen on {host}:{port} ({error.strerror}): choose another {flags}.") from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would close streams before they finish."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_context(options: GatewayOptions, security: RpcSecurityOptions, tracer: Tracer | None = None) -> GatewayContext:
    """Creates the gateway's components; they connect once the application starts. Call it inside the event loop."""
    statistics = RequestStatistics()
    seeds = SeedSource(options.seed)
    large_requests = WorkPool("large requests", 2, 64)
    tokenizers = () if options.skip_tokenizer_init else options.tokenizer_address
    log, traces = RequestLog(options), RequestTraces(tracer)
    pipeline = Pipeline(options.router_address, tokenizers, security, statistics, seeds, log, traces)
    tokenizer = Tokenizer(pipeline.texts.replicas, large_requests)
    reasoning_parser = chosen_reasoning_parser(options.reasoning)
    closing = closing_text(options.reasoning, reasoning_parser)
    return GatewayContext(
        options,
        Fleet(pipeline.router_streams.routers),
        tokenizer,
        pipeline,
        statistics,
        large_requests,
        ConversationMedia(options.media),
        SpeechFormats(tokenizer),
        ApiKeys(options.api_key, options.api_key_file, options.named_keys),
        Responses(open_store(options.responses)),
        reasoning=ReasoningFormat(reasoning_parser, tokenizer, closing) if reasoning_parser else None,
        tool_parser=chosen_tool_parser(options.tools),
        tracer=tracer,
        kv_transfer_key=KvTransferKey(security.grpc_token) if options.enable_kv_transfer_params else None,
    )


def make_server(context: GatewayContext) -> uvicorn.Server:
    """Creates the HTTP server, which is not listening yet."""
    options = context.options
    app = create_app(context)
    return _Server(_config(options, app, options.host, options.port, lifespan="on", ws="websockets-sansio"))


def make_admin_server(context: GatewayContext, registry: CollectorRegistry | None = None) -> uvicorn.Server:
    """Creates the HTTP server of the admin port; the main server's application must be running.

    Args:
        registry: see create_admin_app.
    """
    options, admin = context.options, context.options.admin
    app = create_admin_app(context, registry)
    return _Server(_config(options, app, admin.admin_host, admin.admin_port, lifespan="off"))


@contextlib.asynccontextmanager
async def _admin_port(
    context: GatewayContext, listener: socket.socket | None, registry: CollectorRegistry | None = None
) -> AsyncIterator[None]:
    """Serves the admin port, if there is one, while the context is open; stops it without draining."""
    if listener is None:
        yield
        return
    server = make_admin_server(context, registry)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    keeping = begin(_keep_certificates(server, context.options))
    try:
        yield
    finally:
        keeping.cancel()
        server.should_exit = True
        await _cut(serving, server)
        await serving


async def _serve(
    options: GatewayOptions,
    security: RpcSecurityOptions,
    tracer: Tracer | None,
    listener: socket.socket,
    admin: socket.socket | None,
) -> None:
    context = make_context(options, security, tracer)
    server = make_server(context)
    signals = asyncio.Queue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):  # before readiness is reported
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(_POLL_SECONDS)
    logger.info("listening on %s", options.uds or join_address(options.host, options.port))
    async with _admin_port(context, admin):
        await _serve_until_stopped(context, server, serving, signals)


async def _serve_grpc(
    options: GatewayOptions, security: RpcSecurityOptions, tracer: Tracer | None, admin: socket.socket | None
) -> None:
    """Serves vLLM's gRPC service instead of HTTP, see --grpc.

    Raises:
        StartupError: its package is not installed, or the port is taken.
    """
    try:
        from gateway.vllm_grpc.server import serve_grpc  # late: its package is optional
    except ImportError as error:
        raise StartupError(f"--grpc needs the package smg-grpc-proto ({error}): pip install 'quire[grpc]'.") from error
    context = make_context(options, security, tracer)
    app = create_app(context)
    async with app.router.lifespan_context(app), _admin_port(context, admin, app.state.registry):
        await serve_grpc(app, context)


async def _serve_until_stopped(
    context: GatewayContext, server: uvicorn.Server, serving: asyncio.Task[None], signals: asyncio.Queue[int]
) -> None:
    beside = [begin(_report_readiness(context)), begin(_keep_certificates(server, context.options))]
    await _wait(serving, signals, None)
    for task in beside:
        task.cancel()
    context.draining = True
    is_hurried = await _wait(serving, signals, context.options.drain_settle_seconds)
    deadline = time.monotonic() + context.options.drain_timeout_seconds
    if not is_hurried:  # uvicorn would close WebSockets at once
        ending = asyncio.create_task(context.realtime.end())
        is_hurried = await _wait(ending, signals, context.options.drain_timeout_seconds)
        ending.cancel()
    server.should_exit = True
    if not is_hurried:
        await _wait(serving, signals, max(0.0, deadline - time.monotonic()))
    context.responses.cut(stopping())
    await _cut(serving, server)
    await serving


async def _keep_certificates(server: uvicorn.Server, options: GatewayOptions) -> None:
    """Reloads TLS certificates when they change, until cancelled; does nothing if that is not enabled."""
    while not server.started:
        await asyncio.sleep(_POLL_SECONDS)
    if not server.config.ssl:
        return
    use_certificates(options)
    if options.enable_ssl_refresh:
        await Certificates(server.config.ssl, options).files.watch()


async def _wait(work: asyncio.Task[None], signals: asyncio.Queue[int], seconds: float | None) -> bool:
    """Waits until the work ends, a signal arrives, or the timeout passes; returns whether it was a signal."""
    told = asyncio.create_task(signals.get())
    await asyncio.wait([work, told], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    is_told = told.done()
    told.cancel()
    return is_told


async def _cut(serving: asyncio.Task[None], server: uvicorn.Server) -> None:
    """Ends a server that is out of time: cancels its remaining requests, and each client gets an error."""
    deadline = time.monotonic() + _LAST_WORDS_SECONDS
    cut = set[asyncio.Task[None]]()
    while not serving.done() and time.monotonic() < deadline:
        late = server.server_state.tasks - cut  # a connection may have started its next request
        cut |= late
        for task in late:
            task.cancel()
        await asyncio.wait([serving], timeout=_POLL_SECONDS)
    if cut:
        logger.warning("requests cut off before they finished: %d", len(cut))
    server.force_exit = True


async def _report_readiness(context: GatewayContext) -> None:
    """Tells the supervisor what is missing until the gateway is ready, for which it needs no key or certificate."""
    told = ""
    while missing := ", ".join(context.missing):
        if missing != told:
            report(Stage.WAITING, message=missing)
        told = missing
        await asyncio.sleep(_POLL_SECONDS)
    report(Stage.READY)


def _config(
    options: GatewayOptions,
    app: Starlette,
    host: str,
    port: int,
    lifespan: Literal["on", "off"],
    ws: Literal["none", "websockets-sansio"] = "none",
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="none",
        http=limited_protocol(options),
        ws=ws,
        ws_max_size=_MAX_WEBSOCKET_MESSAGE,
        ws_per_message_deflate=False,
        lifespan=lifespan,
        log_config=None,
        access_log=not options.disable_uvicorn_access_log,
        limit_concurrency=options.max_connections + 1,  # uvicorn serves fewer than this
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=options.ssl_cert_reqs,
        ssl_ciphers=options.ssl_ciphers,
        server_header=False,
    )
