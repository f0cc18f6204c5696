"""What surrounds every call of every server: authentication, request id, deadline, errors, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from quire.error_tables import mapping_of
from quire.errors import DeadlineExceeded, Internal, QuireError, Unauthenticated
from quire.options.server import RpcSecurityOptions
from quire.rpc.context import REQUEST_ID_HEADER, Trace, accept_request_id, enter_request, read_trace
from quire.rpc.status import abort
from quire.tracing.attributes import RPC_METHOD, RPC_SERVICE, RPC_SYSTEM
from quire.tracing.base import Side, Span, Tracer

logger = logging.getLogger(__name__)

# Probes of orchestrators cannot send metadata.
_PUBLIC_PREFIX = "/grpc.health.v1.Health/"
# Unary calls whose caller set no deadline end after this long.
UNARY_SECONDS = 60.0

Behavior = Callable[[Any, grpc.aio.ServicerContext], Any]


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each handler once and keeps the wrapped handlers, so that calls do not pay for the wrapping."""

    def __init__(self, security: RpcSecurityOptions, registry: CollectorRegistry, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._token = f"Bearer {security.grpc_token}".encode() if security.grpc_token else b""
        self._wrapped: dict[str, grpc.RpcMethodHandler] = {}
        self._calls = Counter(
            "quire_grpc_calls", "gRPC calls completed, by status code.", ["method", "code"], registry=registry
        )
        self._seconds = Histogram(
            "quire_grpc_call_seconds", "Duration of gRPC calls, in seconds.", ["method"], registry=registry
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Called by grpc for every call."""
        method = details.method
        if method not in self._wrapped:
            handler = await continuation(details)
            if handler is None:  # unknown method: grpc answers UNIMPLEMENTED
                return None
            self._wrapped[method] = self.wrap(method, handler)
        return self._wrapped[method]

    def wrap(self, method: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """Wraps a handler with everything that surrounds a call."""
        serializers = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), **serializers)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream), **serializers)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(self._stream(method, handler.stream_stream), **serializers)
        return handler

    def _unary(self, method: str, behavior: Behavior) -> Behavior:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            async with self._around(method, context, streams=False):
                async with asyncio.timeout(context.time_remaining() or UNARY_SECONDS):
                    return await behavior(request, context)

        return call

    def _stream(self, method: str, behavior: Behavior) -> Behavior:
        async def generate(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async with self._around(method, context, streams=True):
                async for response in behavior(request, context):
                    yield response

        async def write(request: Any, context: grpc.aio.ServicerContext) -> None:
            async with self._around(method, context, streams=True):
                await behavior(request, context)

        # grpc has two kinds of streaming handlers: those that yield, and those that call context.write.
        return write if inspect.iscoroutinefunction(behavior) else generate

    @contextlib.asynccontextmanager
    async def _around(self, method: str, context: grpc.aio.ServicerContext, *, streams: bool) -> AsyncIterator[None]:
        """Surrounds one call, from start to end."""
        start = time.monotonic()
        span = None
        try:
            span = await self._enter(method, context, streams)
            yield
            self._count(method, "OK", start)
        except BaseException as error:
            if span is not None:
                span.end(type(error).__name__)
                span = None
            await self._fail(method, error, context, start)
            raise
        finally:
            if span is not None:
                span.end()

    async def _enter(self, method: str, context: grpc.aio.ServicerContext, streams: bool) -> Span | None:
        """Authenticates the caller and makes its request the current one; returns the call's span, if it is traced.

        A unary answer sends its metadata last: initial metadata would be a message of its own, a tenth of a short
        call's time.
        """
        metadata = dict(context.invocation_metadata() or ())
        if self._token and not method.startswith(_PUBLIC_PREFIX):
            given = metadata.get("authorization", "")
            if not hmac.compare_digest(given.encode(), self._token):
                raise Unauthenticated("This call needs the deployment's --grpc-token as `authorization: Bearer …`.")
        request_id = accept_request_id(metadata.get(REQUEST_ID_HEADER))
        trace = read_trace(metadata)
        span = self._span(method, trace)
        enter_request(request_id, trace if span is None else span.trace)
        told = ((REQUEST_ID_HEADER, request_id),)
        if streams:
            await context.send_initial_metadata(told)
        else:
            context.set_trailing_metadata(told)
        return span

    def _span(self, method: str, trace: Trace) -> Span | None:
        """Starts the call's span; None for a call outside of any trace, such as a load query, as calls start no trace
        themselves."""
        if self._tracer is None or not trace:
            return None
        service, _, name = method[1:].partition("/")
        attributes = {RPC_SYSTEM: "grpc", RPC_SERVICE: service, RPC_METHOD: name}
        return self._tracer.start(method[1:], Side.SERVER, trace, attributes)

    async def _fail(self, method: str, error: BaseException, context: grpc.aio.ServicerContext, start: float) -> None:
        """Ends the call with the status that the error stands for."""
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self._count(method, "CANCELLED", start)
            return
        if isinstance(error, grpc.aio.AbortError):  # the handler has ended the call itself
            self._count(method, "ABORTED", start)
            return
        if isinstance(error, TimeoutError):
            error = DeadlineExceeded(f"{method} did not finish in time; call again with a longer deadline.")
        if not isinstance(error, QuireError):
            logger.error("%s failed", method, exc_info=error)
            error = Internal("Internal error; the log of this service has the details.")
        self._count(method, mapping_of(error).grpc_code.name, start)
        await abort(context, error)

    def _count(self, method: str, code: str, start: float) -> None:
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(time.monotonic() - start)
