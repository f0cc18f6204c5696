"""Options of tracing, the same in every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import option

ENDPOINT_FLAG = "--otlp-traces-endpoint"
_DETAILS_FLAG = "--collect-detailed-traces"
_DETAILS = ("model", "worker", "all")


@dataclass(frozen=True)
class TracingOptions:
    """Tracing with OpenTelemetry."""

    group: ClassVar[str] = "ObservabilityConfig"

    otlp_traces_endpoint: str | None = option(
        None, "Collector for request traces, over OTLP: http://host:4317, or http://host:4318/v1/traces if "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is http/protobuf. Off by default.", metavar="URL",
    )  # fmt: skip
    collect_detailed_traces: tuple[str, ...] = option(
        (), "Additional details in traces: the time in the model's forward pass (model), in whole steps (worker), or "
        "both (all); and a span for each phase. Separate several with commas, or repeat the flag.",
        metavar="model|worker|all",
        following=r"(all|model|worker|None)(,|$)",
    )  # fmt: skip

    @property
    def details(self) -> frozenset[str]:
        """The details asked for: a subset of model and worker."""
        words = {word for given in self.collect_detailed_traces for word in given.split(",") if word != "None"}
        return frozenset(("model", "worker")) if "all" in words else frozenset(words)

    def check(self) -> None:
        """Checks that the options are consistent.

        Raises:
            StartupError: unknown details are asked for, or details without traces.
        """
        if unknown := self.details - {"model", "worker"}:
            raise StartupError(
                f"{_DETAILS_FLAG} {', '.join(sorted(unknown))} does not exist. Choose from {', '.join(_DETAILS)}."
            )
        if self.details and not self.otlp_traces_endpoint:
            raise StartupError(f"{_DETAILS_FLAG} needs {ENDPOINT_FLAG}: without it, there are no traces.")
