"""The contract of every logits stage, against dense definitions. A new stage needs a definition and a plan here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.stages.allowed_tokens import AllowedTokens
from engine_svc.sampling.stages.bad_words import BadWords
from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.chain import StageChain
from engine_svc.sampling.stages.custom_processors import CustomProcessors, make_processor
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.grammar import GrammarMask
from engine_svc.sampling.stages.logit_bias import LogitBias
from engine_svc.sampling.stages.minimum_tokens import MinimumTokens
from engine_svc.sampling.stages.penalties import Penalties
from engine_svc.sampling.stages.registry import STAGES
from engine_svc.sampling.stages.thinking_budget import ThinkingBudget
from engine_svc.sampling.thinking import make_automaton
from quire.reasoning import ReasoningMarks
from quire.sampling import LogitsProcessorCall
from tests.support import logits_processors
from tests.support.for_each import for_each
from tests.support.plans import join_masks, masks, sampling_plan

VOCABULARY = 30
OWN = logits_processors.__name__
SLOTS = 5
STEPS = 6
CPU = torch.device("cpu")


def penalised(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    wanted, counts, found = plan.parameters, Counter(output), logits.clone()
    for token_id in {*prompt, *output}:
        value = logits[token_id]
        found[token_id] = value / wanted.repetition_penalty if value > 0 else value * wanted.repetition_penalty
        found[token_id] -= counts[token_id] * wanted.frequency_penalty
        found[token_id] -= (counts[token_id] > 0) * wanted.presence_penalty
    return found


def biased(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    found = logits.clone()
    for token_id, bias in plan.parameters.logit_bias:
        found[token_id] += bias
    return found


def by_its_processors(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    found, known = logits.clone(), torch.tensor([*prompt, *output])
    for call in plan.parameters.logits_processors:
        found = make_processor(call).apply(known, len(prompt), found)
    return found


def not_ending(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    found = logits.clone()
    if len(output) < plan.parameters.min_tokens:
        found[list(plan.suppress_token_ids)] = -torch.inf
    return found


def only_allowed(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    wanted = set(plan.parameters.allowed_token_ids) or range(VOCABULARY)
    return torch.tensor([value if token_id in wanted else -torch.inf for token_id, value in enumerate(logits.tolist())])


def without_bad_words(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    found, known = logits.clone(), [*prompt, *output]
    for run in plan.parameters.bad_words:
        if len(run) <= len(known) + 1 and tuple(known[len(known) + 1 - len(run) :]) == run[:-1]:
            found[run[-1]] = -torch.inf
    return found


def allowed_at(length: int) -> list[int]:
    """Returns what these tests' grammar allows after `length` tokens; never empty."""
    return [token_id for token_id in range(VOCABULARY) if (7 * token_id + length) % 3]


def by_its_grammar(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    if not plan.follows_grammar:
        return logits
    found = torch.full_like(logits, -torch.inf)
    allowed = allowed_at(len(prompt) + len(output))
    found[allowed] = logits[allowed]
    return found


def ended_in_time(logits: torch.Tensor, plan: SamplingPlan, prompt: list[int], output: list[int]) -> torch.Tensor:
    wanted, found = plan.parameters, logits.clone()
    if wanted.reasoning is not None and wanted.thinking_token_budget is not None:
        automaton = make_automaton(wanted.reasoning)
        state, count = automaton.follow(output)
        if automaton.marking[state] >= 0 and count + automaton.undecided[state] >= wanted.thinking_token_budget:
            found[automaton.marking[state]] = 1e32
    return found


Definition = Callable[[torch.Tensor, SamplingPlan, list[int], list[int]], torch.Tensor]
DEFINITIONS: dict[type[LogitsStage], Definition] = {
    LogitBias: biased,
    Penalties: penalised,
    CustomProcessors: by_its_processors,
    MinimumTokens: not_ending,
    AllowedTokens: only_allowed,
    GrammarMask: by_its_grammar,
    BadWords: without_bad_words,
    ThinkingBudget: ended_in_time,
}
# Parameters that some stage must follow; a plan is a random selection of these.
PARTS: list[dict[str, Any]] = [
    {}, {"presence_penalty": 0.7}, {"frequency_penalty": -1.5}, {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5, "presence_penalty": -2.0, "frequency_penalty": 0.25}, {"logit_bias": ((0, 3.0),)},
    {"logit_bias": ((29, -100.0), (3, 0.5), (4, 2.0))}, {"min_tokens": 3, "suppress_token_ids": (2, 29)},
    {"min_tokens": 50, "suppress_token_ids": (0,)}, {"min_tokens": 2},
    {"thinking_token_budget": 2, "reasoning": ReasoningMarks((), (3,))},
    {"thinking_token_budget": 0, "reasoning": ReasoningMarks((1, 2), (3, 3, 4), is_open=True)},
    {"thinking_token_budget": 4, "reasoning": ReasoningMarks((1,), (3, 5, 3), is_optional=True)},
    {"logits_processors": (LogitsProcessorCall(f"{OWN}:Successor", b"[3]", b'{"count": 2}'),)},
    {"logits_processors": (LogitsProcessorCall(f"{OWN}.OnlyMultiples", b"[2]"),
                           LogitsProcessorCall(f"{OWN}.OnlyMultiples", b"[3]"))},
    {"allowed_token_ids": (4, 9, 4, 29)}, {"allowed_token_ids": (7,)}, {"bad_words": ((3,), (29,))},
    {"bad_words": ((1, 2, 3, 4, 5), (6,), *((first, 5) for first in range(0, VOCABULARY, 2)))},
    {"follows_grammar": True}, {"follows_grammar": True, "min_tokens": 2}, {"follows_grammar": True},
    {"bad_words": tuple((first, second) for first in range(VOCABULARY) for second in (11, first))},
]  # fmt: skip
# For each stage, a parameter that it cannot follow.
REFUSED: dict[type[LogitsStage], dict[str, Any]] = {
    LogitBias: {"logit_bias": ((VOCABULARY, 1.0),)},
    Penalties: {"presence_penalty": 1.0},  # for a prompt with an invalid token
    CustomProcessors: {"logits_processors": (LogitsProcessorCall(f"{OWN}.Successor", b"[1]"),)},  # no such token
    MinimumTokens: {"min_tokens": 1, "suppress_token_ids": (-1,)},
    AllowedTokens: {"allowed_token_ids": (0, VOCABULARY)},
    BadWords: {"bad_words": ((1,), (-1, 1))},
    ThinkingBudget: {"thinking_token_budget": 1, "reasoning": ReasoningMarks((1,), (VOCABULARY,))},
}
every = pytest.mark.parametrize("kind", STAGES)


class Live:
    """The test's own record of the sequence in a slot."""

    def __init__(self, choose: random.Random) -> None:
        fields: dict[str, Any] = {}
        for part in choose.sample(PARTS, choose.randrange(4)):
            fields |= part
        self.plan = sampling_plan(**fields)
        self.prompt = [choose.randrange(VOCABULARY) for _ in range(choose.randrange(1, 12))]
        self.output = [choose.randrange(VOCABULARY) for _ in range(choose.choice([0, 0, 5]))]

    @property
    def sequence(self) -> SlotSequence:
        return SlotSequence(self.plan, [*self.prompt, *self.output], len(self.prompt))


class Slots:
    """A stage, and the slots for which it has something to do."""

    def __init__(self, kind: type[LogitsStage], seed: int) -> None:
        self.choose = random.Random(seed)
        self.stage = kind(SLOTS, VOCABULARY, CPU)
        self.live: dict[int, Live] = {}
        self.members: set[int] = set()

    def fill(self, slot: int) -> None:
        self.live[slot] = Live(self.choose)
        self.members.discard(slot)
        if self.stage.add(slot, self.live[slot].sequence):
            self.members.add(slot)

    def rows_of(self, slots: list[int]) -> StageRows | None:
        rows = [row for row, slot in enumerate(slots) if slot in self.members]
        lengths = [len(self.live[slots[row]].sequence.token_ids) for row in rows]
        chosen = [slots[row] for row in rows]
        step = masks(VOCABULARY, {slot: allowed_at(length) for slot, length in zip(chosen, lengths, strict=True)})
        return StageRows(rows, chosen, lengths, step) if rows else None


def logits_of(rows: int, seed: int) -> torch.Tensor:
    logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4
    logits[:, 7] = -torch.inf  # forbidden by an earlier stage
    return logits


@every
@for_each("seed", range(20))
def test_as_defined_over_random_plans(kind: type[LogitsStage], seed: int) -> None:
    """Holds while slots are reused, rows come in any order and number, and sampled tokens are counted."""
    slots = Slots(kind, seed)
    for slot in range(SLOTS):
        slots.fill(slot)
    for step in range(STEPS):
        chosen = slots.choose.sample(range(SLOTS), slots.choose.randrange(1, SLOTS + 1))
        logits = logits_of(len(chosen), seed * STEPS + step)
        edits, rows = LogitEdits(logits.clone()), slots.rows_of(chosen)
        recorder = slots.stage.apply(edits, rows) if rows else None
        found = edits.logits
        tokens = [slots.choose.randrange(VOCABULARY) for _ in chosen]
        for row, slot in enumerate(chosen):
            live = slots.live[slot]
            expected = DEFINITIONS[kind](logits[row], live.plan, live.prompt, live.output)
            if slot in slots.members:
                torch.testing.assert_close(found[row], expected)
            else:
                assert torch.equal(found[row], logits[row])
                assert torch.equal(expected, logits[row]), "the stage says that it has nothing to do with this"
            live.output.append(tokens[row])
        if recorder is not None:
            recorder.record(torch.tensor(tokens))
        slots.fill(slots.choose.randrange(SLOTS))


@every
@for_each("seed", range(20))
def test_a_step_can_be_taken_back(kind: type[LogitsStage], seed: int) -> None:
    """Apply, undo and apply again gives bitwise the same as applying once; rows alone equal rows in their batch."""
    slots = Slots(kind, seed)
    for slot in range(SLOTS):
        slots.fill(slot)
    before = logits_of(SLOTS, seed)
    rows = slots.rows_of(list(range(SLOTS)))
    if rows is None:
        return
    first = before.clone()
    edits = LogitEdits(first)
    slots.stage.apply(edits, rows)
    changed = edits.logits.clone()
    edits.undo()
    assert torch.equal(first, before)
    assert edits.logits is first
    for row, slot, known in zip(rows.rows, rows.slots, rows.num_tokens, strict=True):
        alone = LogitEdits(before[row : row + 1].clone())
        slots.stage.apply(alone, StageRows([0], [slot], [known], rows.masks))
        assert torch.equal(alone.logits[0], changed[row])


@every
@for_each("seed", range(20))
def test_several_positions_of_a_sequence_at_once(kind: type[LogitsStage], seed: int) -> None:
    """Positions at once equal one after the other, unless the stage is sequential; those that record tokens must be."""
    slots = Slots(kind, seed)
    slots.fill(0)
    live, drafts = slots.live[0], [slots.choose.randrange(VOCABULARY) for _ in range(3)]
    if 0 not in slots.members:
        return
    known = len(live.sequence.token_ids)
    step = join_masks([masks(VOCABULARY, {0: allowed_at(known + offset)}) for offset in range(4)])
    logits = logits_of(4, seed)
    edits, rows = (
        LogitEdits(logits.clone()),
        StageRows([0, 1, 2, 3], [0] * 4, [*range(known, known + 4)], step, range(4)),
    )
    if kind.is_sequential:
        edits, rows = LogitEdits(logits[:1].clone()), StageRows([0], [0], [known], step, [0])
    recorder = slots.stage.apply(edits, rows)
    assert kind.is_sequential or recorder is None
    for row, found in enumerate(edits.logits):
        output = [*live.output, *drafts[:row]]
        torch.testing.assert_close(found, DEFINITIONS[kind](logits[row], live.plan, live.prompt, output))


@every
def test_a_sequence_that_asks_for_nothing_is_left_alone(kind: type[LogitsStage]) -> None:
    plain = sampling_plan(temperature=0.5, top_k=3, top_p=0.5, seed=1, logprobs=2)
    assert not kind(SLOTS, VOCABULARY, CPU).add(0, SlotSequence(plain, [1, 2, 3], 2))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_followed_is_refused_and_changes_nothing(kind: type[LogitsStage]) -> None:
    refused = SlotSequence(
        sampling_plan(**REFUSED[kind]), [0, VOCABULARY if kind in (Penalties, CustomProcessors) else 1], 1
    )
    with pytest.raises(ValueError, match="vocabulary"):
        kind(SLOTS, VOCABULARY, CPU).add(0, refused)
    chain = StageChain(SLOTS, VOCABULARY, CPU)
    chain.add(0, SlotSequence(sampling_plan(logit_bias=((1, 5.0),)), [0], 1))
    with pytest.raises(ValueError, match="vocabulary"):
        chain.add(0, refused)
    logits = logits_of(1, 0)
    assert not chain.apply(LogitEdits(found := logits.clone()), SampledRows([0], [1]))
    assert torch.equal(found, logits)


def test_every_stage_but_one_can_be_asked_for_too_much() -> None:
    """The grammar mask comes from the engine itself and is not part of the plan, so it cannot be refused."""
    assert set(STAGES) - REFUSED.keys() == {GrammarMask}


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 95])
def test_masks_of_any_size(size: int) -> None:
    stage = GrammarMask(1, size, CPU)
    allowed = {each for each in range(size) if each % 3 == 0}
    stage.apply(edits := LogitEdits(torch.zeros(1, size)), StageRows([0], [0], [1], masks(size, {0: allowed})))
    assert set(edits.logits[0].isfinite().nonzero()[:, 0].tolist()) == allowed


def test_masks_of_another_vocabulary_are_refused() -> None:
    stage = GrammarMask(1, 64, CPU)
    with pytest.raises(ValueError, match="reshape"):
        stage.apply(LogitEdits(torch.zeros(1, 64)), StageRows([0], [0], [1], masks(65, {0: {1}})))


def test_what_forbids_comes_last() -> None:
    """Neither a bias nor a negative penalty brings back a suppressed end token."""
    plan = sampling_plan(
        logit_bias=((2, 100.0),), presence_penalty=-2.0, min_tokens=9, suppress_token_ids=(2,), temperature=0.0
    )
    chain = StageChain(1, VOCABULARY, CPU)
    chain.add(0, SlotSequence(plan, [1, 2], 1))
    logits = logits_of(1, 0)
    chain.apply(edits := LogitEdits(logits), SampledRows([0], [2]))
    assert edits.logits[0, 2] == -torch.inf


def test_the_end_of_thinking_comes_where_it_is_forbidden() -> None:
    plan = sampling_plan(
        bad_words=((2,),), thinking_token_budget=0, reasoning=ReasoningMarks((), (2,)), allowed_token_ids=(1, 3),
        logit_bias=((3, 100.0),), repetition_penalty=1e-38, temperature=2.0,
    )  # fmt: skip
    sampler = Sampler(1, VOCABULARY, CPU)
    sampler.add(0, plan, [3], 1)
    assert sampler.sample(logits_of(1, 0), SampledRows([0], [1])).token_ids.tolist() == [2]
