"""The tracing interface of the services: spans for their work on a request. Without tracing there is no tracer."""

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
    """A unit of work on a request, from its creation to `end`."""

    @property
    def trace(self) -> Trace:
        """The headers that make others' spans children of this one."""

    def rename(self, name: str) -> None:
        """Changes the name, once more is known."""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Adds attributes."""

    def phase(self, name: str, start: float, end: float) -> None:
        """Adds a completed part of the work.

        Args:
            start, end: seconds since the span began.
        """

    def end(self, error: str = "") -> None:
        """Ends the span; called once.

        Args:
            error: why the work failed; empty if it did not.
        """


class Tracer(Protocol):
    """Creates spans and exports them, without ever blocking anything."""

    details: frozenset[str]  # see TracingOptions.details

    def start(self, name: str, side: Side, parent: Trace, attributes: Mapping[str, Attribute]) -> Span:
        """Starts a span.

        Args:
            parent: headers of the parent span; empty starts a new trace.
        """


@contextlib.contextmanager
def open_tracer(service: str, options: TracingOptions) -> Iterator[Tracer | None]:
    """Opens a process's tracer, which exports its remaining spans at the end; None if tracing is off.

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
