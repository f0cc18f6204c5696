"""Export of spans to a collector over both protocols, and what happens when it is unavailable."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from quire.errors import StartupError
from quire.options.tracing import TracingOptions
from quire.tracing.base import Side, Tracer, open_tracer
from quire.tracing.otlp import OtlpTracer
from tests.support.traces import PARENT_ID, TRACE_ID, TRACEPARENT, Collector, MemoryTracer
from tests.support.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[3]
PARENT = (("traceparent", TRACEPARENT), ("tracestate", "vendor=1"))


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def trace_something(tracer: Tracer | None) -> None:
    assert tracer is not None
    span = tracer.start("first", Side.SERVER, PARENT, {"n": 1})
    tracer.start("inner", Side.CLIENT, span.trace, {}).end("it broke")
    span.set({"words": ("a", "b")})
    span.phase("queue", 0.5, 1.5)
    span.rename("outer")
    span.end()


def check(collector: Collector, service: str) -> None:
    spans = collector.wait(["outer", "inner", "queue"])
    outer, inner, queue = spans["outer"], spans["inner"], spans["queue"]
    assert (outer.service, outer.parent_id, outer.failed) == (service, PARENT_ID, False)
    assert outer.attributes == {"n": 1, "words": ["a", "b"]}
    assert (inner.parent_id, inner.failed, queue.parent_id) == (outer.span_id, True, outer.span_id)
    assert (queue.start - outer.start, queue.end - outer.start) == (500_000_000, 1_500_000_000)


def test_by_grpc(collector: Collector) -> None:
    with open_tracer("router", TracingOptions(collector.endpoint)) as tracer:
        trace_something(tracer)
    check(collector, "quire-router")


def test_by_http(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with open_tracer("engine", TracingOptions(f"http://127.0.0.1:{server.server_port}/v1/traces")) as tracer:
            trace_something(tracer)
        check(collector, "shop-engine")
        server.shutdown()
        thread.join()


def test_what_is_passed_on_names_the_span_and_keeps_the_state() -> None:
    tracer = MemoryTracer()
    span = tracer.start("one", Side.SERVER, PARENT, {})
    span.end()
    (told,) = tracer.spans()
    assert dict(span.trace) == {"traceparent": f"00-{TRACE_ID}-{told.span_id}-01", "tracestate": "vendor=1"}


def test_what_the_client_does_not_sample_is_not_sent() -> None:
    tracer = MemoryTracer()
    span = tracer.start("one", Side.SERVER, (("traceparent", TRACEPARENT[:-1] + "0"),), {})
    span.end()
    assert dict(span.trace)["traceparent"].endswith("-00")
    assert not tracer.spans()


class Away(SpanExporter):
    """A collector that is away and then back, where the test decides when; or one that never answers."""

    def __init__(self) -> None:
        self.is_back = False
        self.calls = 0
        self.hold = threading.Event()
        self.hold.set()

    def export(self, spans: object) -> SpanExportResult:
        self.calls += 1
        self.hold.wait(WAIT_SECONDS)
        if not self.is_back:
            raise ConnectionError
        return SpanExportResult.SUCCESS


def test_a_collector_that_is_away_is_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    caplog.set_level(logging.INFO)
    away = Away()
    tracer = OtlpTracer("router", TracingOptions("http://there:4317"), away)
    for is_back in (False, False, True, True):
        away.is_back, before = is_back, away.calls
        tracer.start("one", Side.SERVER, (), {}).end()
        wait_for(lambda before=before: away.calls > before)
    tracer.close()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "traces cannot be sent to http://there:4317 and are dropped for now; requests are still served",
        "traces are sent to http://there:4317 again",
    ]


def test_nobody_waits_for_a_collector_that_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither requests, although more spans come than are queued, nor the end of the process wait."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setattr("quire.tracing.otlp._LAST_SECONDS", 0.05)
    away = Away()
    away.hold.clear()
    tracer = OtlpTracer("router", TracingOptions("http://there:4317"), away)
    for _ in range(100):
        tracer.start("one", Side.SERVER, (), {}).end()
    tracer.close()
    assert away.calls <= 1
    away.hold.set()
    assert not caplog.records


def test_wrong_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError, match="--collect-detailed-traces gpu does not exist"):
        TracingOptions("http://there:4317", ("model,gpu",)).check()
    with pytest.raises(StartupError, match="--collect-detailed-traces needs --otlp-traces-endpoint"):
        TracingOptions(None, ("all",)).check()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with (
        pytest.raises(StartupError, match=r"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'; it must be grpc or"),
        open_tracer("router", TracingOptions("http://there:4317")),
    ):
        pass


@pytest.mark.parametrize(
    ("given", "meant"),
    [(("model",), {"model"}), (("model,worker",), {"model", "worker"}), (("model", "all"), {"model", "worker"}),
     (("None",), set())],
)  # fmt: skip
def test_details(given: tuple[str, ...], meant: set[str]) -> None:
    assert TracingOptions("http://there:4317", given).details == meant


def test_without_the_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quire.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(StartupError, match=r"--otlp-traces-endpoint needs the package .* 'quire\[tracing\]'"),
        open_tracer("router", TracingOptions("http://there:4317")),
    ):
        pass


def test_off_nothing_is_imported() -> None:
    program = (
        "import sys, gateway.main, router.main, tokenizer_svc.main\n"
        "from quire.tracing.base import open_tracer\n"
        "from quire.options.tracing import TracingOptions\n"
        "with open_tracer('router', TracingOptions()) as tracer: assert tracer is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)
