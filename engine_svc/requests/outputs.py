"""What the engine says of its requests after each step."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine_svc.plan import PositionLogprobs
from engine_svc.pooling_plan import PooledOutput
from quire.counters import Counters
from quire.errors import QuireError
from quire.sleep import SleepLevel


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


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
    # Of all steps between the first one that ran it and its end.
    forward_seconds: float = 0.0
    execute_seconds: float = 0.0


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
    ended_by_constraint: bool = False  # and by no stop token: the last token is part of the text
    pooled: tuple[PooledOutput, ...] = ()  # of a request for pooling, on its only delta


def num_items(deltas: Sequence[SequenceDelta]) -> int:
    """What deltas count where a bound is on those that nobody has read: one for each token, or for none."""
    return sum(len(delta.token_ids) or 1 for delta in deltas)


@dataclass(frozen=True)
class AdapterLoad:
    """What an adapter has of the engine now."""

    name: str
    on_device: bool
    running_sequences: int
    waiting_sequences: int


@dataclass(frozen=True)
class EngineStatus:
    """What operators have asked of the engine."""

    is_draining: bool = False  # it takes no new requests
    is_paused: bool = False  # none of those that it has gets on
    sleep_level: SleepLevel | None = None
    asleep: tuple[str, ...] = ()  # the parts of its memory that were given back: see quire.sleep
    is_profiling: bool = False


@dataclass(frozen=True)
class EngineLoad:
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
    adapters: tuple[AdapterLoad, ...] = ()  # that are on the device or have sequences
    adapters_version: int = 0  # of the names that are served
    max_loras: int = 0  # 0 where none are
    status: EngineStatus = EngineStatus()
