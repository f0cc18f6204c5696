"""Options of the engine's periodic log line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option


@dataclass(frozen=True)
class LogStatsOptions:
    """Statistics in the log."""

    group: ClassVar[str] = "ObservabilityConfig"

    log_stats_interval_seconds: float = option(
        10.0, "Interval at which an engine that has work logs its throughput, its running and waiting sequences and "
        "the use of its KV cache. 0: never.", minimum=0.0, variables=("VLLM_LOG_STATS_INTERVAL",),
    )  # fmt: skip
