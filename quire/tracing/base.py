"""What services need of traces: spans of what they do for a request. There is no tracer where nobody wants any."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Protocol

from quire.extras import needed
from quire.options.tracing import ENDPOINT_FLAG, TracingOptions
from quire.rpc.context import Trace

Attribute = str | int | float | bool | tuple[str, ...]


class Side(Enum):
    """Which side of a call a span is on."""

    SERVER = auto()
    CLIENT = auto()


class Span(Protocol):
    """Something that is done for a request, from now to `end`."""

    @property
    def trace(self) -> Trace:
        """The headers by which others make what they do for it a part of it."""

    def rename(self, name: str) -> None:
        """Once more is known."""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Tells something of it."""

    def phase(self, name: str, start: float, end: float) -> None:
        """A part of it that is over.

        Args:
            start, end: seconds since the span began.
        """

    def end(self, error: str = "") -> None:
        """It is over; called once.

        Args:
            error: why it failed, if it has.
        """


class Tracer(Protocol):
    """Makes spans and sends them, without ever holding anybody up."""

    details: frozenset[str]  # see TracingOptions.details

    def start(self, name: str, side: Side, parent: Trace, attributes: Mapping[str, Attribute]) -> Span:
        """
        Args:
            parent: headers of the span that it is a part of; none begins a trace.
        """


@contextlib.contextmanager
def open_tracer(service: str, options: TracingOptions) -> Iterator[Tracer | None]:
    """A process's tracer, which sends what it has left at the end; None where traces are off.

    Raises:
        StartupError: the options are wrong, or OpenTelemetry is not installed.
    """
    options.check()
    if options.otlp_traces_endpoint is None:
        yield None
        return
    with needed(ENDPOINT_FLAG, "opentelemetry-sdk", "tracing"):
        exporting = importlib.import_module("quire.tracing.otlp")
    tracer = exporting.OtlpTracer(service, options)
    try:
        yield tracer
    finally:
        tracer.close()
