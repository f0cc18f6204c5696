"""Options of `quire bench latency` and `quire bench throughput`, which measure an engine without a server around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.options.base import option


def _output_json() -> Any:
    return option(None, "File for the result as JSON.", metavar="FILE")


@dataclass(frozen=True)
class LatencyOptions:
    """Latency benchmark."""

    group: ClassVar[str] = "LatencyConfig"

    input_len: int = option(32, "Tokens per prompt.", minimum=1)
    output_len: int = option(128, "Tokens per answer.", minimum=1)
    batch_size: int = option(8, "Prompts in the batch.", minimum=1)
    n: int = option(1, "Answers per prompt.", minimum=1)
    num_iters_warmup: int = option(10, "Number of warm-up batches.", minimum=0)
    num_iters: int = option(30, "Number of measured batches.", minimum=1)
    output_json: str | None = _output_json()


@dataclass(frozen=True)
class ThroughputOptions:
    """Throughput benchmark."""

    group: ClassVar[str] = "ThroughputConfig"

    n: int = option(1, "Answers per prompt.", minimum=1)
    num_warmups: int = option(0, "Number of warm-up prompts, which are not counted.", minimum=0)
    output_json: str | None = _output_json()
