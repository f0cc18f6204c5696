"""What the engine reports about its requests and its load."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine_svc.plan import EncodedRows, PositionLogprobs
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
    """What a request cost. Times are in seconds."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int
    # Total of all steps of the engine from the first one that ran the request to its end.
    forward_seconds: float = 0.0
    execute_seconds: float = 0.0


class SequenceDelta(msgspec.Struct, frozen=True):
    """New tokens and events of one sequence. A struct, because one is created for every token."""

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
    ended_by_constraint: bool = False  # not by a stop token: the last token is part of the text
    num_previous_tokens: int | None = None  # of the sequence's output; None without token_ids
    # For each of token_ids, the rows of the tokens that were computed for it: see RoutedExpertsForm.
    routed_experts: list[bytes] | None = None
    sampling_masks: list[list[int]] | None = None  # for each of token_ids, those that it was sampled from
    weight_version: str = ""  # of the weights that computed token_ids; see EngineStatus
    # Outputs of a pooling request, or the embeddings of an image (EncodedRows), on its only delta.
    pooled: tuple[PooledOutput | EncodedRows, ...] = ()


def num_items(deltas: Sequence[SequenceDelta]) -> int:
    """Size of deltas for bounds on unread ones: the number of tokens of each, but at least one."""
    return sum(len(delta.token_ids) or 1 for delta in deltas)


@dataclass(frozen=True)
class AdapterLoad:
    """Current load of one adapter."""

    name: str
    on_device: bool
    running_sequences: int
    waiting_sequences: int


@dataclass(frozen=True)
class EngineStatus:
    """The state that operators have put the engine in."""

    is_draining: bool = False  # no new requests are taken
    is_paused: bool = False  # existing requests make no progress
    sleep_level: SleepLevel | None = None
    asleep: tuple[str, ...] = ()  # parts of its memory that are released: see quire.sleep
    is_profiling: bool = False
    weight_version: str = ""  # name of the weights that were loaded at runtime


@dataclass(frozen=True)
class EngineLoad:
    """Current load, and the counters."""

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
    adapters: tuple[AdapterLoad, ...] = ()  # those on the device or with sequences
    adapters_version: int = 0  # changes with the set of served adapters
    max_loras: int = 0  # 0 if no adapters are served
    status: EngineStatus = EngineStatus()
