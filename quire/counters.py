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

    prompt_tokens: int = _count("Prompt tokens, computed or found in the prefix cache.")
    generation_tokens: int = _count("Tokens generated.")
    preemptions: int = _count("Preemptions of sequences.")
    prefix_cache_queries: int = _count("Tokens looked up in the prefix cache.")
    prefix_cache_hits: int = _count("Tokens found in the prefix cache on the device.")
    external_cache_queries: int = _count(
        "Tokens missing on the device that were looked up in host memory or shared storage."
    )
    external_cache_hits: int = _count(
        "Tokens missing on the device that were loaded from host memory or shared storage."
    )
    host_cache_hits: int = _count("Tokens missing on the device that were loaded from host memory.")
    host_saved_bytes: int = _count("Bytes of KV blocks copied from the device to host memory, on each rank.")
    host_loaded_bytes: int = _count("Bytes of KV blocks copied from host memory to the device, on each rank.")
    storage_saved_bytes: int = _count("Bytes of KV blocks that left the device for shared storage, on each rank.")
    storage_loaded_bytes: int = _count("Bytes of KV blocks loaded from shared storage, on each rank.")
    computed_tokens: int = _count("Tokens computed, including those recomputed after a preemption.")
    draft_tokens: int = _count("Draft tokens verified by the model.")
    draft_emitted_tokens: int = _count("Tokens generated for sequences in steps that verified drafts of theirs.")
    draft_failures: int = _count("Failures of the drafting method; the engine continues without it.")
    dual_batch_steps: int = _count("Steps run in two halves to overlap communication with computation (--enable-dbo).")
    encoded_media: int = _count("Images, videos and audios that the worker has encoded itself.")
    pulled_media: int = _count("Images, videos and audios that an encoder worker has encoded for this one.")
    failed_media_pulls: int = _count(
        "Images, videos and audios that an encoder worker was asked for in vain; the worker then encodes them itself."
    )
    draft_accepted_tokens: HistogramSnapshot = _histogram("Number of tokens accepted per verified draft.")
    iteration_tokens: HistogramSnapshot = _histogram(
        "Prompt and generated tokens per step. A prompt counts in full in the step that completes it."
    )
    model_forward_milliseconds: HistogramSnapshot = _histogram("Time per step in the model's forward pass.")
    model_execute_milliseconds: HistogramSnapshot = _histogram("Time per step in the executor, including sampling.")


_FIELDS = dataclasses.fields(Counters)
HELP: Mapping[str, str] = MappingProxyType({field.name: field.metadata["help"] for field in _FIELDS})
COUNTS = tuple(field.name for field in _FIELDS if field.default == 0)
HISTOGRAMS = tuple(field.name for field in _FIELDS if field.name not in COUNTS)
