"""What a simulated engine is asked to do, and what it can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.router_simulation.requests import BLOCK_SIZE, SimRequest
from quire.v1 import common_pb2


@dataclass(frozen=True)
class EngineSpec:
    """What an engine can do. The default is about an 8B model on a GPU with 32 GiB for KV blocks."""

    seconds_per_step: float = 0.008
    seconds_per_token: float = 60e-6
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    num_blocks: int = 16384
    tokens_per_delta: int = 64  # after the first, which comes alone


class Listener(Protocol):
    """One router's end of the connection to an engine."""

    def send(self, deltas: list[common_pb2.GenerationDelta]) -> None:
        """Deltas of the requests that came from there."""

    def cache_changed(self, removed: Sequence[int], stored: Sequence[int]) -> None:
        """Keys of blocks that went and came."""

    def drain_began(self) -> None:
        """The engine refuses what is new from now on."""

    def process_died(self) -> None:
        """The engine's process has ended, and its sockets with it."""

    def process_began(self) -> None:
        """There is a new one."""


@dataclass(slots=True, eq=False)
class Job:
    """A request at an engine."""

    listener: Listener
    stream_id: int
    request: SimRequest
    position: int  # tokens generated so far, here or elsewhere
    arrived: float
    prefill_tokens: int = 0  # prompt and progress
    computed: int = 0  # of those
    cached: int = 0
    held: list[int] = field(default_factory=list)  # keys of the cached blocks that it holds
    published: int = 0  # full blocks that are in the cache
    first_step: int = 0  # that brought the first token, and when
    first_time: float = 0.0
    first_position: int = 0
    sent: int = 0  # tokens sent, counted like `position`
    gone: bool = False

    @property
    def num_blocks(self) -> int:
        """That it needs."""
        return math.ceil(self.request.total_tokens / BLOCK_SIZE)
