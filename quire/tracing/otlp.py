"""Tracing with OpenTelemetry's SDK: spans wait in a bounded queue, and a thread sends them to the collector."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as SdkTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import quire
from quire.errors import StartupError
from quire.options.tracing import TracingOptions
from quire.rpc.context import Trace
from quire.supervised import supervised_name
from quire.tracing.base import Attribute, Side

logger = logging.getLogger(__name__)

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_KINDS = {Side.SERVER: SpanKind.SERVER, Side.CLIENT: SpanKind.CLIENT}
_WIRE = TraceContextTextMapPropagator()
# Time that an ending process has to send its remaining spans.
_LAST_SECONDS = 2.0


class OtlpTracer:
    """Sends spans to a collector. Its queue has the SDK's bounds (OTEL_BSP_*); spans that do not fit are dropped."""

    def __init__(self, service: str, options: TracingOptions, exporter: SpanExporter | None = None) -> None:
        """
        Args:
            service: Quire's name of the service, for `service.name`, after a prefix that OTEL_SERVICE_NAME sets.
            exporter: used in place of the one that the options select.

        Raises:
            StartupError: the environment selects an unknown protocol.
        """
        self.details = options.details
        endpoint = options.otlp_traces_endpoint or ""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs every failed batch; we log the first
        self._provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        told = _Telling(exporter or _exporter(endpoint), endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(told))
        self._tracer = self._provider.get_tracer("quire", quire.__version__)

    def start(self, name: str, side: Side, parent: Trace, attributes: Mapping[str, Attribute]) -> OtlpSpan:
        """See Tracer."""
        now = time.time_ns()
        context = _WIRE.extract(dict(parent))
        span = self._tracer.start_span(name, context, _KINDS[side], dict(attributes), start_time=now)
        return OtlpSpan(self._tracer, span, now)

    def close(self) -> None:
        """Sends the remaining spans, if the collector accepts them at once."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_LAST_SECONDS)


class OtlpSpan:
    """See Span."""

    def __init__(self, tracer: SdkTracer, span: SdkSpan, start: int) -> None:
        self._tracer, self._span, self._start = tracer, span, start
        headers: dict[str, str] = {}
        _WIRE.inject(headers, set_span_in_context(span))
        self.trace: Trace = tuple(headers.items())

    def rename(self, name: str) -> None:
        """See Span."""
        self._span.update_name(name)

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """See Span."""
        self._span.set_attributes(dict(attributes))

    def phase(self, name: str, start: float, end: float) -> None:
        """See Span."""
        begin, over = self._start + int(start * 1e9), self._start + int(end * 1e9)
        self._tracer.start_span(name, set_span_in_context(self._span), start_time=begin).end(over)

    def end(self, error: str = "") -> None:
        """See Span."""
        if error:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


class _Telling(SpanExporter):
    """Logs a line when the collector becomes unreachable, and another when it is back."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter, self._endpoint = exporter, endpoint
        self._lost = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:  # whatever it is, the next batch is attempted
            result = SpanExportResult.FAILURE
        lost = result is not SpanExportResult.SUCCESS
        if lost and not self._lost:
            logger.warning(
                "traces cannot be sent to %s and are dropped for now; requests are still served", self._endpoint
            )
        elif self._lost and not lost:
            logger.warning("traces are sent to %s again", self._endpoint)
        self._lost = lost
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _resource(service: str) -> Resource:
    name = f"{os.environ.get('OTEL_SERVICE_NAME') or 'quire'}-{service}"
    instance = supervised_name() or f"{service}-{os.getpid()}"
    return Resource.create(
        {"service.name": name, "service.version": quire.__version__, "service.instance.id": instance}
    )


def _exporter(endpoint: str) -> SpanExporter:
    """
    Raises:
        StartupError: see OtlpTracer.
    """
    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint)
    raise StartupError(f"{_PROTOCOLS[0]} is {protocol!r}; it must be grpc or http/protobuf.")
