"""The living: sequences, and the requests they belong to. Changed in the engine's thread only."""

from __future__ import annotations

import enum

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.plan import PositionLogprobs, SamplingPlan
from engine_svc.request import GenerationRequest


class SequenceState(enum.Enum):
    """Where a sequence is in its life. It may go from RUNNING to PREEMPTED and back any number of times."""

    CREATED = enum.auto()  # not in the scheduler yet: it waits for the sequence whose blocks it will share
    WAITING = enum.auto()  # for its first step
    RUNNING = enum.auto()  # holds a slot of the runner
    PREEMPTED = enum.auto()  # lost slot and blocks; waits to be computed anew
    FINISHED = enum.auto()  # holds nothing


class LiveRequest:
    """A request from admission to its last delta."""

    __slots__ = (
        "arrival_time", "cached_prompt_tokens", "completion_tokens", "deadline", "eos_token_ids",
        "first_scheduled_time", "first_token_time", "key", "last_token_time", "preemptions", "prompt_logprobs",
        "request", "sequences", "stop_token_ids", "unfinished",
    )  # fmt: skip

    def __init__(
        self, key: int, request: GenerationRequest, eos_token_ids: frozenset[int], arrival_time: float
    ) -> None:
        sampling = request.sampling
        self.key = key  # chosen by the caller of Engine.add; never used twice
        self.request = request
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.stop_token_ids = frozenset(sampling.stop_token_ids)
        self.sequences: list[Sequence] = []
        self.unfinished = sampling.n - sum(choice.finished for choice in request.progress)
        self.arrival_time = arrival_time
        self.deadline = None if request.timeout_seconds is None else arrival_time + request.timeout_seconds
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        self.cached_prompt_tokens = 0
        self.completion_tokens = sum(len(choice.token_ids) for choice in request.progress)
        self.preemptions = 0
        self.prompt_logprobs: list[PositionLogprobs] = []

    def find(self, choice_index: int) -> Sequence | None:
        """The sequence of that index, unless it has ended."""
        alive = (each for each in self.sequences if each.state is not SequenceState.FINISHED)
        return next((each for each in alive if each.choice_index == choice_index), None)


class Sequence:
    """One of the n continuations of a prompt: tokens known, and how many of them are computed.

    Steps that are under way count as done: what they compute is computed, and what they sample is pending. One that
    another worker has begun starts like one that comes back after a preemption: with output that is not computed.
    """

    __slots__ = (
        "choice_index", "generates", "max_length", "num_computed_tokens", "num_pending_tokens", "num_prompt_tokens",
        "order", "owner", "sampling", "slot", "state", "table", "token_ids", "wants_prompt_logprobs",
    )  # fmt: skip

    def __init__(
        self,
        owner: LiveRequest,
        choice_index: int,
        order: tuple[int, int, int],
        sampling: SamplingPlan,
        max_length: int,
        table: BlockTable,
    ) -> None:
        self.owner = owner
        self.choice_index = choice_index
        self.order = order  # rank, arrival, choice: whoever is smaller goes first
        self.sampling = sampling
        self.max_length = max_length  # of prompt and output together
        self.table = table
        progress = owner.request.progress
        self.token_ids = owner.request.prompt_token_ids + (progress[choice_index].token_ids if progress else [])
        self.num_prompt_tokens = len(owner.request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0  # sampled by steps whose results have not come yet
        self.generates = max_length > self.num_prompt_tokens  # else it only computes its prompt
        self.slot = -1
        self.state = SequenceState.CREATED
        # Until they are complete: they need every prompt token computed, so the prefix cache must not be read.
        self.wants_prompt_logprobs = sampling.num_prompt_logprobs is not None and self.num_prompt_tokens > 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens, known or pending, that are still to be computed."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def is_ending(self) -> bool:
        """The token that is pending is the last one."""
        return self.num_pending_tokens > 0 and len(self.token_ids) + self.num_pending_tokens >= self.max_length
