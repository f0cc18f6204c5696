"""What the engine says of its requests after each step."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from engine_svc.plan import PositionLogprobs
from quire.errors import QuireError
from quire.histogram import HistogramSnapshot


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class Usage:
    """What a request cost. Times in seconds."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int


class SequenceDelta(msgspec.Struct, frozen=True):
    """News of one sequence. A struct, because one is made for every token."""

    key: int  # of the request
    choice_index: int
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None  # one for each of token_ids
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    is_final: bool = False  # the last delta of the request
    usage: Usage | None = None  # on the final one
    error: QuireError | None = None


@dataclass(frozen=True)
class Counters:
    """Figures since the engine's start; they only grow."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    host_cache_queries: int = 0
    host_cache_hits: int = 0
    computed_tokens: int = 0
    iteration_tokens: HistogramSnapshot = field(default_factory=lambda: HistogramSnapshot((), (0,), 0.0))
    model_forward_milliseconds: HistogramSnapshot = field(default_factory=lambda: HistogramSnapshot((), (0,), 0.0))
    model_execute_milliseconds: HistogramSnapshot = field(default_factory=lambda: HistogramSnapshot((), (0,), 0.0))


@dataclass(frozen=True)
class Load:
    """Load now, and the counters."""

    running_sequences: int
    waiting_requests: int
    used_kv_blocks: int
    total_kv_blocks: int
    swapped_sequences: int
    used_host_blocks: int
    total_host_blocks: int
    waiting_prefill_tokens: int
    step: int
    busy: bool
    counters: Counters
