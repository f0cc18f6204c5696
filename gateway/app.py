"""Builds the ASGI application: routes and middleware, each an ordered list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Lifespan

from gateway.admin.registry import admin_routes
from gateway.api_keys import ApiKeys
from gateway.background import begin
from gateway.context import GatewayContext
from gateway.endpoints import (
    adapters,
    audio,
    chat,
    cohere,
    cohere_chat,
    compaction,
    completions,
    decisions,
    derender,
    embeddings,
    generate,
    generative_scoring,
    messages,
    operations,
    page,
    realtime,
    render,
    responses,
    scoring,
    server_info,
    tokens,
)
from gateway.endpoints.invocations import invocations
from gateway.errors import (
    HttpError,
    handle_http_error,
    handle_http_exception,
    handle_quire_error,
    handle_unexpected,
    stopping,
)
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.shared import SharedFigures, place_of
from gateway.middleware.authentication import AuthenticationMiddleware, public_paths
from gateway.middleware.measuring import MeasuringMiddleware
from gateway.middleware.memory import MemoryMiddleware
from gateway.middleware.of_users import middleware_of
from gateway.middleware.rate_limits import RateLimitMiddleware
from gateway.middleware.request_id import RequestIdMiddleware
from gateway.middleware.root_path import RootPathMiddleware
from gateway.middleware.stopping import StoppingMiddleware
from gateway.middleware.tracing import TracingMiddleware
from gateway.openapi import docs, openapi_json
from quire.compatibility.refused_routes import REFUSED_ROUTES
from quire.errors import QuireError
from quire.metrics import new_registry
from quire.options.gateway import GatewayOptions
from quire.supervised import supervised_name


def routes(options: GatewayOptions) -> list[Route]:
    """Returns the routes of the main port."""
    found = [
        Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
        Route("/v1/chat/completions/batch", chat.chat_batch, methods=["POST"]),
        Route("/v1/completions", completions.completions, methods=["POST"]),
        Route("/v1/decisions", decisions.decisions, methods=["POST"]),
        Route("/v1/systemone", decisions.system_one, methods=["POST"]),
        Route("/v1/messages", messages.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
        Route("/cohere/v2/chat", cohere_chat.cohere_chat, methods=["POST"]),
        *_scale_out(options),  # before the parametrized paths that would also match
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/compact", compaction.compact, methods=["POST"]),
        Route("/v1/responses/input_tokens", responses.input_tokens, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.kept, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/audio/transcriptions", audio.transcriptions, methods=["POST"]),
        Route("/v1/audio/translations", audio.translations, methods=["POST"]),
        Route("/v1/realtime", realtime.upgrade_needed),
        Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
        Route("/v2/embed", cohere.embed, methods=["POST"]),
        Route("/v1/embed", cohere.embed_v1, methods=["POST"]),
        Route("/pooling", embeddings.pooling, methods=["POST"]),
        Route("/classify", embeddings.classify, methods=["POST"]),
        *(Route(path, scoring.score, methods=["POST"]) for path in ("/score", "/v1/score")),
        *(Route(path, scoring.rerank, methods=["POST"]) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
        Route("/generative_scoring", generative_scoring.generative_scoring, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", responses.input_items),
        Route("/invocations", invocations, methods=["POST"]),
        Route("/v1/models", tokens.list_models),
        Route("/v1/models/{model:path}", tokens.get_model),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/health", operations.health),
        Route("/ping", operations.health, methods=["GET", "POST"]),
        Route("/readyz", operations.health),
        Route("/livez", operations.livez),
        Route("/version", operations.version),
        Route("/load", operations.load),
        Route("/kv_event_sources", operations.kv_event_sources),
        Route("/fleet", page.fleet),
        Route("/metrics", operations.metrics),
    ]
    if options.allow_runtime_lora_updating:
        found += [
            Route("/v1/load_lora_adapter", adapters.load_adapter, methods=["POST"]),
            Route("/v1/unload_lora_adapter", adapters.unload_adapter, methods=["POST"]),
        ]
    if options.enable_tokenizer_info_endpoint:
        found += [Route(path, tokens.tokenizer_info) for path in ("/tokenizer_info", "/get_tokenizer_info")]
    if options.server_dev_mode:
        hosts = options.admin.admin_allowed_hosts
        found.append(Route("/server_info", server_info.server_info))
        found += admin_routes(has_keys=options.needs_key, allowed_hosts=hosts)
    if options.page:
        found += [Route("/", page.page), Route("/page/{asset}", page.asset)]
    if not options.disable_fastapi_docs:
        found += [Route("/openapi.json", openapi_json), Route("/docs", docs), Route("/redoc", docs)]
        found.append(Route("/docs/{asset}", docs))
    return found


def websocket_routes() -> list[WebSocketRoute]:
    """Returns the WebSockets of the main port."""
    return [WebSocketRoute("/v1/realtime", realtime.realtime)]


def refused_routes() -> list[Route]:
    """Routes of other servers that Quire does not implement: each answers why, and what to use instead."""
    named = [route.split(" ") for route in REFUSED_ROUTES]
    return [Route(path, operations.refused, methods=[method]) for method, path in named]


def _scale_out(options: GatewayOptions) -> list[Route]:
    """Routes for disaggregated serving. While --enable-scale-out is off they refuse and name that flag."""
    paths = {
        "/inference/v1/generate": generate.generate,
        "/inference/v1/abort_requests": generate.abort,
        "/v1/chat/completions/render": render.render_chat,
        "/v1/completions/render": render.render_completion,
        "/v1/messages/render": render.render_messages,
        "/v1/responses/render": render.render_response,
        "/cohere/v2/chat/render": render.render_cohere_chat,
        "/v1/chat/completions/derender": derender.derender_chat,
        "/v1/completions/derender": derender.derender_completion,
    }
    return [
        Route(path, endpoint if options.enable_scale_out else operations.scale_out_is_off, methods=["POST"])
        for path, endpoint in paths.items()
    ]


def middleware(context: GatewayContext) -> list[Middleware]:
    """Returns the middleware, outermost first. CORS precedes authentication: preflight requests carry no key."""
    options, tracer = context.options, context.tracer
    found = [
        Middleware(RootPathMiddleware, root_path=options.root_path),
        Middleware(MeasuringMiddleware, statistics=context.http_statistics),
        Middleware(RequestIdMiddleware, echo=options.enable_request_id_headers),
        *([Middleware(TracingMiddleware, tracer=tracer)] if tracer is not None else []),
    ]
    if options.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.allowed_origins,
                allow_methods=options.allowed_methods,
                allow_headers=options.allowed_headers,
                allow_credentials=options.allow_credentials,
            )
        )
    found.append(Middleware(MemoryMiddleware, guard=context.memory))
    if options.needs_key:
        public = public_paths(options.metrics_without_key)
        found.append(Middleware(AuthenticationMiddleware, api_keys=context.api_keys, public_paths=public))
        found.append(Middleware(RateLimitMiddleware))
    found += map(middleware_of, options.middleware)
    return [*found, Middleware(StoppingMiddleware)]


def admin_middleware(options: GatewayOptions) -> list[Middleware]:
    """Returns the middleware of the admin port: its own keys, required on every path, and no CORS."""
    found = [Middleware(RequestIdMiddleware, echo=options.enable_request_id_headers)]
    if keys := options.admin.admin_api_key:
        found.append(Middleware(AuthenticationMiddleware, api_keys=ApiKeys(keys), public_paths=()))
    return [*found, Middleware(StoppingMiddleware)]


def create_app(context: GatewayContext) -> Starlette:
    """Creates the ASGI application of the main port."""
    registry, shared = make_registry(context)
    app = _application(
        context, [*routes(context.options), *websocket_routes(), *refused_routes()],
        middleware(context),
        partial(_lifespan, [] if shared is None else [shared.run]),
    )  # fmt: skip
    app.state.registry = registry
    app.state.num_live = partial(getattr, context.statistics if shared is None else shared, "num_live")
    return app


def create_admin_app(context: GatewayContext, registry: CollectorRegistry | None = None) -> Starlette:
    """Creates the ASGI application of the admin port. It relies on the main application to keep the sessions up.

    Args:
        registry: what `/metrics` reports, if this port has it.
    """
    admin = context.options.admin
    found = admin_routes(has_keys=bool(admin.admin_api_key), allowed_hosts=admin.admin_allowed_hosts)
    if registry is not None:
        found.append(Route("/metrics", operations.metrics))
    app = _application(context, [*found, *refused_routes()], admin_middleware(context.options))
    app.state.registry = registry
    return app


def _application(
    context: GatewayContext,
    routes: Sequence[BaseRoute],
    middleware: Sequence[Middleware],
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            QuireError: handle_quire_error,
            HttpError: handle_http_error,
            HTTPException: handle_http_exception,
            Exception: handle_unexpected,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.context = context
    return app


def make_registry(context: GatewayContext) -> tuple[CollectorRegistry, SharedFigures | None]:
    """Returns the registry behind `/metrics`, and the shared figures if several gateways share one port.

    Gateways that share a port report the sums of all of them, and no process metrics.
    """
    collector = GatewayCollector(
        context.fleet,
        context.pipeline.router_streams,
        context.statistics,
        context.http_statistics,
        context.api_keys,
        context.memory,
        context.realtime,
    )
    if not (folder := context.options.shared_port_folder):
        registry = new_registry()
        registry.register(collector)
        return registry, None
    shared = SharedFigures(collector, lambda: context.statistics.num_live, place_of(folder, supervised_name()))
    registry = CollectorRegistry()
    registry.register(shared)
    return registry, shared


@asynccontextmanager
async def _lifespan(more: Sequence[Callable[[], Coroutine[Any, Any, None]]], app: Starlette) -> AsyncIterator[None]:
    """Runs the sessions with the other services, and the jobs in `more`, while the server runs."""
    context: GatewayContext = app.state.context
    jobs = [
        begin(run())
        for run in (context.fleet.run, context.pipeline.run, context.api_keys.run, context.memory.run, *more)
    ]
    yield
    await context.responses.close(context.options.drain_timeout_seconds, stopping())
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    await context.media.close()
