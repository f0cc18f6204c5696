"""Traces for tests: an OTLP collector on loopback, and a tracer that keeps spans in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from quire.options.tracing import TracingOptions
from quire.tracing.otlp import OtlpTracer
from tests.support.waiting import WAIT_SECONDS

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


@dataclass(frozen=True)
class Told:
    """A span that was sent to a collector."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    failed: bool
    start: int
    end: int


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans by gRPC until `close`."""

    def __init__(self) -> None:
        self._heard = threading.Condition()
        self._spans: list[Told] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.take(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        with self._heard:
            self._spans.extend(spans_of(request))
            self._heard.notify_all()

    def wait(self, names: Iterable[str]) -> dict[str, Told]:
        """The trace's spans by name, once those with the given names have arrived."""
        with self._heard:
            wanted = set(names)
            assert self._heard.wait_for(lambda: wanted <= self._told().keys(), WAIT_SECONDS), self._told()
            return self._told()

    def close(self) -> None:
        self._server.stop(None)

    def _told(self) -> dict[str, Told]:
        return {span.name: span for span in self._spans if span.trace_id == TRACE_ID}


def spans_of(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterable[Told]:
    for resource in request.resource_spans:
        about = {each.key: _value(each.value) for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {each.key: _value(each.value) for each in span.attributes}
                yield Told(
                    about["service.name"], span.name, span.trace_id.hex(), span.span_id.hex(),
                    span.parent_span_id.hex(), attributes, span.status.code == 2, span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )  # fmt: skip


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found


class MemoryTracer(OtlpTracer):
    """Keeps its spans."""

    def __init__(self, *details: str) -> None:
        self.memory = InMemorySpanExporter()
        super().__init__("test", TracingOptions("http://nowhere:1", details), self.memory)

    def ended(self) -> list[str]:
        """Names of the spans that have ended until now."""
        self._provider.force_flush()
        return [span.name for span in self.memory.get_finished_spans()]

    def spans(self) -> list[Told]:
        """All spans that have ended; closes the tracer, so later spans are lost."""
        self.close()
        return [
            Told(
                "test", span.name, f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}",
                f"{span.parent.span_id:016x}" if span.parent else "", dict(span.attributes or {}),
                not span.status.is_unset, span.start_time or 0, span.end_time or 0,
            )
            for span in self.memory.get_finished_spans()
        ]  # fmt: skip

    def named(self) -> dict[str, Told]:
        """The result of `spans` by name."""
        return {span.name: span for span in self.spans()}
