"""Live sequences, and the requests that they belong to. Changed in the engine's thread only."""

from __future__ import annotations

import dataclasses
import enum
from collections import abc

from engine_svc.adapters.adapter import Adapter
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.plan import PositionLogprobs, SamplingPlan
from engine_svc.requests.recording import Recording
from engine_svc.requests.repetition import RepetitionDetector
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.routed_rows import RoutedRows
from engine_svc.structured.follower import Follower


class SequenceState(enum.Enum):
    """Life cycle of a sequence. It may change from RUNNING to PREEMPTED and back any number of times."""

    CREATED = enum.auto()  # not in the scheduler yet: waits for the sequence whose blocks it will share
    WAITING = enum.auto()  # waits for its first step
    RUNNING = enum.auto()  # holds a slot of the runner
    PREEMPTED = enum.auto()  # lost its slot and blocks; waits to be recomputed
    FINISHED = enum.auto()  # holds nothing


class LiveRequest:
    """A request from admission to its last delta."""

    __slots__ = (
        "arrival_time", "awaits_grammar", "cached_prompt_tokens", "completion_tokens", "deadline",
        "ending_token_ids", "eos_token_ids", "first_scheduled_time", "first_token_time", "key", "last_token_time",
        "mask_seconds", "preemptions", "prompt_logprobs", "recording", "request", "sequences", "step_seconds_before",
        "unfinished",
    )  # fmt: skip

    def __init__(
        self, key: int, request: GenerationRequest, eos_token_ids: frozenset[int], arrival_time: float
    ) -> None:
        sampling = request.sampling
        self.key = key  # chosen by the caller of Engine.add; never used twice
        self.request = request
        self.recording: Recording | None = None  # set if it goes on
        self.awaits_grammar = False  # none of its sequences may start yet
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.ending_token_ids = self.eos_token_ids | frozenset(sampling.stop_token_ids)
        self.sequences: list[Sequence] = []
        self.unfinished = sampling.n - sum(choice.finished for choice in request.progress)
        self.arrival_time = arrival_time
        self.deadline = None if request.timeout_seconds is None else arrival_time + request.timeout_seconds
        self.first_scheduled_time: float | None = None
        self.step_seconds_before: tuple[float, float] | None = None  # at that time; see EngineStatistics.step_seconds
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        self.cached_prompt_tokens = 0
        self.completion_tokens = sum(len(choice.token_ids) for choice in request.progress)
        self.preemptions = 0
        self.mask_seconds = 0.0  # engine thread time spent on its grammar
        self.prompt_logprobs: list[PositionLogprobs] = []

    def rewind(self) -> None:
        """Has a recording that goes on begin with all that has come of it, as its sequence has been preempted."""
        if self.recording is not None:
            self.recording.rewind()
            self.request = dataclasses.replace(self.request, images=(self.recording.image,))

    def find(self, choice_index: int) -> Sequence | None:
        """The sequence of this choice; None if it has ended."""
        alive = (each for each in self.sequences if each.state is not SequenceState.FINISHED)
        return next((each for each in alive if each.choice_index == choice_index), None)


class Sequence:
    """One of the n continuations of a prompt: its known tokens, and how many of them are computed.

    It owns its tokens and counters: only `advance`, `append` and `roll_back` write `token_ids`, `num_computed_tokens`
    and `num_pending_tokens`. Steps that are under way count as done: their tokens count as computed, and a token is
    pending at each position that they sample. This assumes that all drafted tokens are accepted; `append` takes back
    the rejected ones.

    Invariants: 0 <= num_computed_tokens <= known and pending tokens <= max_length, and the table has blocks for all
    computed tokens. While tokens are pending, all tokens but the last pending one are computed.

    A sequence that another worker has begun starts like one that returns after a preemption: with output that is not
    computed.
    """

    __slots__ = (
        "_tokens", "adapter_slot", "choice_index", "first_step", "follower", "generates", "hears_all", "last_step",
        "max_length", "num_computed_tokens", "num_pending_tokens", "num_prompt_tokens", "order", "owner", "repetition",
        "routed", "sampling", "slot", "state", "table", "token_ids", "wants_prompt_logprobs",
    )  # fmt: skip

    def __init__(
        self,
        owner: LiveRequest,
        choice_index: int,
        order: tuple[int, int, int],
        sampling: SamplingPlan,
        max_length: int,
        table: BlockTable,
        *,
        hears_all: bool = False,
    ) -> None:
        self.owner = owner
        self.choice_index = choice_index
        self.order = order  # rank, arrival, choice: smaller goes first
        self.sampling = sampling
        self.max_length = max_length  # of prompt and output combined
        self.hears_all = hears_all  # that length is the end of the recording that it writes down
        self.table = table
        progress = owner.request.progress
        self._tokens = owner.request.held_token_ids + (progress[choice_index].token_ids if progress else [])
        self.token_ids: abc.Sequence[int] = self._tokens  # all known tokens, prompt first
        self.num_prompt_tokens = owner.request.num_prompt_tokens
        self.num_computed_tokens = 0  # how many of its first tokens are computed
        self.num_pending_tokens = 0  # positions sampled by steps whose results have not come yet
        self.generates = max_length > self.num_prompt_tokens  # otherwise it only computes its prompt
        detection = sampling.parameters.repetition_detection
        self.repetition = (
            RepetitionDetector(detection, self._tokens[self.num_prompt_tokens :])
            if detection and detection.max_pattern_size
            else None
        )
        self.routed: RoutedRows | None = None  # None if it is not returned
        self.follower: Follower | None = None  # follows the request's constraint up to the last known token
        self.slot = -1
        self.first_step = self.last_step = -1  # steps that computed some of it since it got its slot
        self.adapter_slot = 0  # device slot while it holds one: see AdapterSlots
        self.state = SequenceState.CREATED
        # True until they are complete: they need every prompt token computed, so the prefix cache must not be read.
        self.wants_prompt_logprobs = sampling.num_prompt_logprobs is not None and self.num_prompt_tokens > 1

    @property
    def adapter(self) -> Adapter | None:
        """See AdapterUser."""
        return self.owner.request.adapter

    @property
    def num_output_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known or pending tokens that are not computed yet."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_ready_tokens(self) -> int:
        """Those of them that a step may compute: not those that hear what has not come yet of a recording."""
        missing = len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens  # asked for in each step
        recording = self.owner.recording
        return missing if recording is None else min(missing, recording.num_heard - self.num_computed_tokens)

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that may still be generated, not counting pending ones."""
        return self.max_length - len(self.token_ids) - self.num_pending_tokens

    def advance(self, num_tokens: int, num_sampled_positions: int = 0) -> None:
        """Marks the next tokens as computed, by a cache hit or by a step, which may sample at the last of them."""
        self.num_computed_tokens += num_tokens
        self.num_pending_tokens += num_sampled_positions

    def append(self, token_ids: list[int], num_sampled_positions: int) -> None:
        """Appends the run of tokens that a step sampled; positions that it computed after the run are taken back.

        Args:
            num_sampled_positions: positions at which the step sampled; at least the length of the run.

        Raises:
            ValueError: the run is empty or longer than that.
        """
        count = len(token_ids)
        if not 0 < count <= num_sampled_positions:
            raise ValueError(f"a run of {count} tokens was sampled at {num_sampled_positions} positions")
        self._tokens.extend(token_ids)
        if self.follower is not None:
            self.follower.append(token_ids)
        self.num_pending_tokens -= num_sampled_positions
        self.num_computed_tokens -= num_sampled_positions - count

    def end_with_recording(self, num_tokens: int) -> None:
        """Bounds its length by that of its recording, which is over, unless it ends before that."""
        if num_tokens <= self.max_length:
            self.max_length, self.hears_all = num_tokens, True

    def take_routed(self, count: int) -> list[bytes] | None:
        """Takes what comes with the last `count` tokens: for each, the rows of the tokens before it."""
        if self.routed is None:
            return None
        known = len(self.token_ids)
        return [self.routed.take(end) for end in range(known - count, known)]

    def roll_back(self) -> None:
        """Marks all tokens as not computed; results of steps under way will be ignored."""
        self.num_computed_tokens = self.num_pending_tokens = 0

    def check(self, block_size: int) -> None:
        """Verifies the invariants of the class.

        Raises:
            RuntimeError: one is violated.
        """
        computed, pending, length = self.num_computed_tokens, self.num_pending_tokens, len(self.token_ids)
        if not 0 <= computed <= length + pending <= self.max_length:
            raise RuntimeError(f"{computed} of {length} + {pending} tokens are computed, {self.max_length} at most")
        if pending and computed != length + pending - 1:
            raise RuntimeError(f"{computed} of {length} + {pending} tokens are computed: not all but one")
        if computed > len(self.table) * block_size:
            raise RuntimeError(f"{computed} tokens are computed in {len(self.table)} blocks of {block_size}")
