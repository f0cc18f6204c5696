"""The table of everything that engines count, with the same field names as EngineCounters on the wire.

Conversion, the fleet's sums and the metrics all iterate over these names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quire.histogram import HistogramSnapshot


def _count(help: str) -> Any:
    return dataclasses.field(default=0, metadata={"help": help})


def _histogram(help: str) -> Any:
    return dataclasses.field(default=HistogramSnapshot((), (0,), 0.0), metadata={"help": help})


@dataclass(frozen=True)
class Counters:
    """Counters since an engine's start; they never decrease."""

    prompt_tokens: int = _count("Tokens of prompts computed or found.")
    generation_tokens: int = _count("Tokens generated.")
    preemptions: int = _count("Preemptions.")
    prefix_cache_queries: int = _count("Tokens looked up in the prefix cache.")
    prefix_cache_hits: int = _count("Tokens found in the prefix cache, on the device or in host memory.")
    host_cache_queries: int = _count("Tokens looked up in host memory because the device did not have them.")
    host_cache_hits: int = _count("Tokens found in host memory that the device did not have.")
    computed_tokens: int = _count("Tokens computed.")
    draft_tokens: int = _count("Guessed tokens that the model verified.")
    draft_emitted_tokens: int = _count(
        "Tokens of sequences in the steps in which guessed tokens of theirs were verified."
    )
    draft_failures: int = _count("Times that what guesses tokens failed; its worker goes on without it.")
    dual_batch_steps: int = _count("Steps that ran as two halves, to communicate beside computing (--enable-dbo).")
    draft_accepted_tokens: HistogramSnapshot = _histogram(
        "Number of leading tokens that were accepted, for each verified draft."
    )
    iteration_tokens: HistogramSnapshot = _histogram(
        "Prompt and generated tokens of a step; a prompt counts, whole, in the step that completes it."
    )
    model_forward_milliseconds: HistogramSnapshot = _histogram("Time in the forward pass of a step.")
    model_execute_milliseconds: HistogramSnapshot = _histogram("Time in the executor of a step.")


_FIELDS = dataclasses.fields(Counters)
HELP: Mapping[str, str] = MappingProxyType({field.name: field.metadata["help"] for field in _FIELDS})
COUNTS = tuple(field.name for field in _FIELDS if field.default == 0)
HISTOGRAMS = tuple(field.name for field in _FIELDS if field.name not in COUNTS)
