"""An executor without a model: its next token is a hash of the whole context, read back through the block tables.

Any mistake of the control side with blocks, slots or counts either changes the tokens or raises an error here.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from engine_svc.block_stores.base import BlockStore, NoStore
from engine_svc.block_stores.tiers import joined
from engine_svc.executor.base import Executor
from engine_svc.plan import (
    CacheSize,
    KvCacheSpec,
    NewSequence,
    PositionLogprobs,
    SamplingPlan,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TokenMasks,
    Transfers,
)
from engine_svc.upkeep import (
    CheckWeights,
    ReceiveTensors,
    ReleaseMemory,
    RestoreCache,
    RestoreWeights,
    StopProfile,
    Upkeep,
)
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from tests.support.fake_adapters import FakeAdapters

_MASK = 2**61 - 1


def _mix(state: int, token_id: int) -> int:
    return (state * 6364136223846793005 + token_id * 1442695040888963407 + 1) & _MASK


def next_token(state: int, sampling: SamplingPlan, position: int, vocab_size: int) -> int:
    """The token after the context hashed to `state`; depends on the seed unless greedy, as a model's would."""
    noise = _mix(sampling.seed, position) if not sampling.parameters.is_greedy else 0
    return ((state ^ noise) >> 7) % vocab_size


def _root(adapter: str) -> int:
    """The state before the first token, for the model with the adapter of a folder."""
    state = 1
    for byte in adapter.encode():
        state = _mix(state, byte)
    return state


def expected_tokens(
    prompt: Sequence[int], count: int, vocab_size: int, sampling: SamplingPlan, adapter: str = ""
) -> list[int]:
    """What the fake model generates after `prompt`, with a folder's adapter or weights; computed without an engine."""
    state = _root(adapter)
    for token_id in prompt:
        state = _mix(state, token_id)
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + count):
        tokens.append(next_token(state, sampling, position, vocab_size))
        state = _mix(state, tokens[-1])
    return tokens


Block = list[tuple[int, int]]


class Numbered:
    """Blocks, and states numbered after them."""

    def __init__(self, blocks: list[Block], states: list[tuple[int, int]]) -> None:
        self._blocks, self._states = blocks, states

    def __getitem__(self, number: int) -> Any:
        count = len(self._blocks)
        return self._blocks[number] if number < count else self._states[number - count]

    def __setitem__(self, number: int, value: Any) -> None:
        count = len(self._blocks)
        if number < count:
            self._blocks[number] = value
        else:
            self._states[number - count] = value


class FakeHostMemory(BlockStore):
    """A host memory tier in a list."""

    def __init__(self, device: Numbered | list[Any], num_places: int) -> None:
        self._device = device
        self._memory: list[Any] = [None] * num_places

    def begin(self, transfers: Transfers) -> None:
        for save in transfers.saves:
            for number, place in zip(save.block_ids, save.places, strict=True):
                self._memory[int(place)] = copy(self._device[number])
        for load in transfers.loads:
            for number, place in zip(load.block_ids, load.places, strict=True):
                self._device[number] = copy(self._memory[int(place)])


@dataclass
class _Row:
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[list[int]]
    sampling: SamplingPlan
    adapter_slot: int
    adapter: str  # the folder of the slot's, when the sequence began


class FakeExecutor(Executor):
    """Its cache has one entry per token and block: the group of layers, and the hash of the context up to the token.

    Draft tokens are verified: a run consists of those that are right and the token after them.

    Args:
        verify: reads every sequence's whole context back in each step, or the part in each group's sliding window.
        step_seconds: duration of a step.
        on_step: called with each plan before it runs; may raise, to make the step fail.
        failed_slots: called with each plan; returns the slots that fail, and why.
        max_in_flight: see Executor; a step runs when it is submitted, before the control side hears of the last one.
        right_guesses: how many of the draft tokens that it is asked for are right.
        draft_fails_in_step: the step in which the draft model fails, so that nothing is drafted.
        make_store: makes a connector's store, which moves blocks of this cache, besides that of the host tier.
        adapters: adapters, each of which gives every context a different initial hash.
        keeps_states: it has recurrent layers: contexts go on from their slots' states instead of from cached blocks.
    """

    def __init__(
        self,
        vocab_size: int = 1000,
        block_size: int = 16,
        max_model_len: int = 2048,
        max_num_batched_tokens: int = 2048,
        bytes_per_block: int = 1024,
        available_bytes: int = 1024 * 4096,
        verify: bool = False,
        windows: Sequence[int | None] = (None,),
        step_seconds: float = 0.0,
        on_step: Callable[[StepPlan], None] | None = None,
        failed_slots: Callable[[StepPlan], dict[int, str]] | None = None,
        max_in_flight: int = 1,
        make_store: Callable[[Numbered], BlockStore] | None = None,
        right_guesses: int = 0,
        draft_fails_in_step: int | None = None,
        adapters: FakeAdapters | None = None,
        keeps_states: bool = False,
    ) -> None:
        self.keeps_states = keeps_states
        # By slot: the number of tokens known in the last step, and hashes of contexts of as many, and with its drafts.
        self._states: dict[int, tuple[int, list[int]]] = {}
        self._snapshots: list[tuple[int, int]] = []
        self.right_guesses = right_guesses
        self.draft_fails_in_step = draft_fails_in_step
        self.vocab_size = vocab_size
        self.spec = KvCacheSpec(
            architecture="FakeForCausalLM", dtype="float32", device="cpu", vocab_size=vocab_size,
            max_model_len=max_model_len, bytes_per_block=bytes_per_block, available_bytes=available_bytes,
            attention_backend="reference", block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens, windows=tuple(windows),
            adapter_modules={"q_proj": (8, 6)} if adapters else {},
        )  # fmt: skip
        self.verify = verify
        self.step_seconds = step_seconds
        self.on_step = on_step
        self.failed_slots = failed_slots
        self.closed = False
        self.asked: list[Upkeep] = []
        self._missing: set[type[Upkeep]] = set()  # before steps can run
        self._size = CacheSize()
        self.max_in_flight = max_in_flight
        self._results: deque[StepResult] = deque()
        self.no_memory_for: type[Upkeep] | None = None
        self.why_not = ""  # the weights of other folders cannot be loaded
        self._weights = ""  # the folder of other weights, if any were loaded
        self._begun: StepPlan | None = None  # it awaits its masks
        self._rows: dict[int, _Row] = {}
        self._cache: list[Block] = []
        self._make_store = make_store
        self._adapters = adapters or FakeAdapters(0, 0)
        self._store: BlockStore = NoStore()

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        return self.spec

    def allocate(self, size: CacheSize) -> None:
        self._size = size
        self._snapshots = [(0, 0)] * size.num_snapshots
        self._cache = [[(0, 0)] * self.spec.block_size for _ in range(size.num_blocks)]
        device = Numbered(self._cache, self._snapshots)
        num_places = size.num_host_blocks + size.num_host_snapshots
        host = [FakeHostMemory(device, num_places)] if num_places else []
        self._store = joined([*host, *([self._make_store(device)] if self._make_store else [])])

    def upkeep(self, command: Upkeep) -> list[str]:
        assert not self._results, "a step is under way"
        self.asked.append(command)
        match command:
            case ReleaseMemory():
                self._missing = {RestoreCache} if command.keeps_weights else {RestoreWeights, RestoreCache}
                self._cache, self._rows = [], {}
                if command.forgets_weights:
                    self._adapters.forget_all()
            case RestoreWeights() | RestoreCache() if self.no_memory_for is type(command):
                raise StartupError("Not enough memory: somebody else has it.")
            case RestoreWeights():
                assert not command.folder or RestoreWeights in self._missing
                self._weights = command.folder or self._weights
                self._missing.discard(RestoreWeights)
            case CheckWeights() if self.why_not:
                return [self.why_not]
            case RestoreCache():
                assert RestoreWeights not in self._missing
                self._missing.discard(RestoreCache)
                self.allocate(self._size)
            case StopProfile():
                return ["fake.json"]
            case ReceiveTensors():
                (Path(command.folder) / "received.safetensors").touch()
        return []

    def close(self) -> None:
        self.closed = True

    def submit(self, plan: StepPlan) -> None:
        assert not self._missing, "it sleeps"
        assert self._begun is None, "a step awaits its masks"
        if plan.awaits_masks:
            self._begun = plan
        else:
            self._results.append(self.step(plan))
        assert len(self._results) + (self._begun is not None) <= self.max_in_flight

    def send_masks(self, masks: TokenMasks) -> None:
        assert self._begun is not None, "no step awaits masks"
        plan, self._begun = self._begun, None
        self._results.append(self.step(plan, masks))

    def collect(self) -> StepResult:
        assert self._results, "the step awaits its masks, or there is none"
        return self._results.popleft()

    def step(self, plan: StepPlan, masks: TokenMasks | None = None) -> StepResult:
        allowed = _allowed(masks or TokenMasks(), self.vocab_size)
        if self.on_step is not None:
            self.on_step(plan)
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self._store.begin(plan.transfers)
        ended = self._store.take_ended()
        self._adapters.begin(plan.adapters)
        read = self._adapters.take_read()
        for new in plan.new_sequences:
            self._rows[new.slot] = self._new_row(new)
            is_saved = self.keeps_states and new.num_computed_tokens > 0
            assert is_saved == (new.snapshot >= 0)
            known, state = self._snapshots[new.snapshot] if is_saved else (0, self._root(self._rows[new.slot]))
            self._states[new.slot] = known, [state]
        failed = self.failed_slots(plan) if self.failed_slots is not None else {}
        slots: list[int] = []
        runs: list[list[int]] = []
        logprobs: dict[int, list[PositionLogprobs]] = {}
        prompt_logprobs: dict[int, list[PositionLogprobs]] = {}
        guesses: dict[int, list[int]] = {}
        seen: set[int] = set()
        for scheduled in plan.scheduled:
            slot = scheduled.slot
            assert slot not in seen, "a slot appears twice in one step"
            seen.add(slot)
            row = self._rows[slot]
            states = self._compute(row, scheduled)
            if row.sampling.num_prompt_logprobs is not None:
                prompt_logprobs[slot] = self._prompt_logprobs(row, scheduled)
            if not scheduled.num_sampled_positions:
                continue
            run = self._sample(
                row, states[-scheduled.num_sampled_positions :], scheduled.draft_token_ids, allowed[slot]
            )
            if slot not in failed:
                slots.append(slot)
                runs.append(run)
                if scheduled.num_wanted_drafts and plan.step != self.draft_fails_in_step:
                    guesses[slot] = self._guess(row, scheduled.num_wanted_drafts)
                if row.sampling.parameters.logprobs is not None:
                    logprobs[slot] = [_position(token_id, row.sampling.parameters.logprobs) for token_id in run]
        for slot, place in plan.snapshots.items():
            known, after = self._states[slot]
            self._snapshots[place] = known, after[0]
        return StepResult(
            slots, runs, logprobs, prompt_logprobs, 0.5, 1.0, failed, ended, draft_token_ids=guesses,
            read_adapters=read, encoded_images=dict.fromkeys(plan.images.begun, ""),
            draft_failure="out of luck" if plan.step == self.draft_fails_in_step else "",
        )  # fmt: skip

    def _guess(self, row: _Row, wanted: int) -> list[int]:
        """Draft tokens, the first ones right, the others wrong, as far as the blocks have room for a draft's cache."""
        room = min(len(block_ids) for block_ids in row.block_ids) * self.spec.block_size - len(row.token_ids) + 1
        found = expected_tokens(row.token_ids, min(wanted, room), self.vocab_size, row.sampling, self._model(row))
        return [(token + (index >= self.right_guesses)) % self.vocab_size for index, token in enumerate(found)]

    def _sample(self, row: _Row, states: list[int], drafts: tuple[int, ...], masks: list[list[int]]) -> list[int]:
        """The draft tokens that are right, and the token after them; the row drops what was computed for the rest."""
        run: list[int] = []
        assert len(masks) in (0, len(states)), "not one mask for each position"
        for state, draft, allowed in zip_longest(states, drafts, masks):
            run.append(next_token(state, row.sampling, len(row.token_ids), self.vocab_size))
            if allowed is not None:
                forbidden = row.sampling.suppress_token_ids if self._is_too_short(row) else ()
                left = [token_id for token_id in allowed if token_id not in forbidden]
                run[-1] = left[run[-1] % len(left)]
            row.token_ids.append(run[-1])
            if draft != run[-1]:
                break
        row.num_computed_tokens = len(row.token_ids) - 1
        return run

    def _model(self, row: _Row) -> str:
        return self._weights + row.adapter

    def _root(self, row: _Row) -> int:
        return _root(self._model(row))

    def _is_too_short(self, row: _Row) -> bool:
        return len(row.token_ids) - row.num_prompt_tokens < row.sampling.parameters.min_tokens

    def _new_row(self, new: NewSequence) -> _Row:
        assert new.num_prompt_tokens <= len(new.token_ids)
        return _Row(
            list(new.token_ids), new.num_prompt_tokens, new.num_computed_tokens,
            [list(block_ids) for block_ids in new.block_ids], new.sampling, new.adapter_slot,
            self._adapters.folder_of(new.adapter_slot),
        )  # fmt: skip

    def _compute(self, row: _Row, scheduled: ScheduledSequence) -> list[int]:
        """Writes the hashes of the new tokens, and returns them."""
        size = self.spec.block_size
        start, count, drafts = scheduled.num_computed_tokens, scheduled.num_new_tokens, scheduled.draft_token_ids
        token_ids = [*row.token_ids, *drafts]
        if scheduled.new_block_ids:
            for block_ids, added in zip(row.block_ids, scheduled.new_block_ids, strict=True):
                block_ids += added
        assert start == row.num_computed_tokens, "control and compute disagree on what is computed"
        assert count > len(drafts)
        assert start + count <= len(token_ids) <= self.spec.max_model_len
        assert {start + count <= len(block_ids) * size for block_ids in row.block_ids} == {True}, "not enough blocks"
        if scheduled.num_sampled_positions:
            assert scheduled.num_sampled_positions == 1 + len(drafts)
            assert start + count == len(token_ids)
        else:
            assert not drafts
        assert self._adapters.folder_of(row.adapter_slot) == row.adapter, "a slot was given away"
        if self.verify:
            self._verify(row, start)
        state = self._cache[row.block_ids[0][(start - 1) // size]][(start - 1) % size][1] if start else self._root(row)
        if self.keeps_states:
            known, after = self._states[scheduled.slot]
            assert 0 <= start - known < len(after), "the state is that of another position"
            state = after[start - known]
        states = []
        for position in range(start, start + count):
            state = _mix(state, token_ids[position])
            states.append(state)
            for group, block_ids in enumerate(row.block_ids):
                self._cache[block_ids[position // size]][position % size] = group, state
        row.num_computed_tokens += count
        self._states[scheduled.slot] = start + count - len(drafts), states[-1 - len(drafts) :]
        return states

    def _verify(self, row: _Row, computed: int) -> None:
        state = self._root(row)
        size = self.spec.block_size
        for position in range(computed):
            state = _mix(state, row.token_ids[position])
            for group, (block_ids, window) in enumerate(zip(row.block_ids, self.spec.windows, strict=True)):
                if window is None or position > computed - window:
                    found = self._cache[block_ids[position // size]][position % size]
                    assert found == (group, state), "a block was overwritten"

    def _prompt_logprobs(self, row: _Row, scheduled: ScheduledSequence) -> list[PositionLogprobs]:
        start = scheduled.num_computed_tokens
        end = min(start + scheduled.num_new_tokens, row.num_prompt_tokens - 1)
        count = row.sampling.num_prompt_logprobs or 0
        return [_position(row.token_ids[position + 1], count) for position in range(start, end)]


def _allowed(masks: TokenMasks, vocab_size: int) -> dict[int, list[list[int]]]:
    """By slot, the tokens whose bits are set, position by position."""
    width = -(-vocab_size // 32) * 4
    rows = np.frombuffer(masks.bits, np.uint8).reshape(len(masks.slots), width)
    bits = np.unpackbits(rows, axis=1, bitorder="little")[:, :vocab_size]
    found: dict[int, list[list[int]]] = defaultdict(list)
    for slot, row in zip(masks.slots, bits, strict=True):
        found[slot].append(np.nonzero(row)[0].tolist())
    return found


def _position(token_id: int, alternatives: int) -> PositionLogprobs:
    return PositionLogprobs([token_id, *range(alternatives)], [-0.5, *(-1.0 - i for i in range(alternatives))], 1)
