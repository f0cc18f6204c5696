"""A drafting engine on the fake executor: the same tokens, in fewer steps where that pays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine_svc.core.engine import Engine
from engine_svc.plan import StepPlan
from engine_svc.requests.sequence import Sequence
from engine_svc.speculative.guesser import Guess, Guesser
from engine_svc.speculative.speculation import Speculation
from quire.options.speculative import SpeculativeConfig
from tests.engine_svc.core.test_engine import PROMPTS, VOCABULARY, Collected, expected, make_engine, request, run
from tests.support.fake_executor import FakeExecutor
from tests.support.speculation import FakeGuesser


class Machine:
    """A clock that advances by each step's cost, and the plans of the steps."""

    def __init__(self, price: Callable[[StepPlan], float] | None = None) -> None:
        self.now = 100.0
        self.plans: list[StepPlan] = []
        self._price = price or (lambda plan: 0.010 + 0.0001 * plan.num_tokens)

    def clock(self) -> float:
        return self.now

    def step(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.now += self._price(plan)

    @property
    def drafts(self) -> list[int]:
        """The number of drafted tokens in each step."""
        return [sum(len(each.draft_token_ids) for each in plan.scheduled) for plan in self.plans]


def make(
    guesser: Guesser | None, machine: Machine, in_flight: int = 1, config: dict[str, Any] | None = None, **changes: Any
) -> tuple[Engine, Speculation]:
    speculation = Speculation(
        SpeculativeConfig("ngram", **({"num_speculative_tokens": 4} | (config or {}))), guesser, machine.clock,
        overlaps=in_flight > 1,
    )  # fmt: skip
    executor = FakeExecutor(VOCABULARY, 4, verify=True, on_step=machine.step, max_in_flight=in_flight)
    changes = {"num_blocks": 1000, "max_num_batched_tokens": 200} | changes
    return make_engine(executor, machine.clock, drafter=speculation, **changes), speculation


def always(count: int) -> Callable[[Sequence], int]:
    return lambda sequence: count


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("right", [0, 1, 4])
@pytest.mark.parametrize("blocks", [36, 400])
def test_tokens_are_those_without_guesses(in_flight: int, right: int, blocks: int) -> None:
    machine = Machine()
    engine, speculation = make(
        FakeGuesser(VOCABULARY, always(right)), machine, in_flight, num_blocks=blocks, max_model_len=140
    )
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=40, n=2))
    collected = run(engine)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == collected.tokens[key, 1] == expected(prompt, 40)
    assert any(machine.drafts) or right < 4 or blocks < 400
    assert engine.load().used_kv_blocks == 0
    assert not speculation.is_active
    engine.check()


def test_right_guesses_make_fewer_steps_and_are_counted() -> None:
    machine = Machine()
    engine, _ = make(FakeGuesser(VOCABULARY, always(4)), machine)
    engine.add(0, request([1, 2, 3], max_tokens=100))
    collected = run(engine)
    assert collected.tokens[0, 0] == expected([1, 2, 3], 100)
    assert len(machine.plans) < 40
    counters = engine.load().counters
    accepted = counters.draft_accepted_tokens
    assert counters.draft_tokens == sum(machine.drafts) == accepted.sum
    assert sum(accepted.counts) == sum(map(bool, machine.drafts))
    assert counters.draft_emitted_tokens == counters.draft_tokens + sum(map(bool, machine.drafts))
    assert counters.draft_failures == 0


def test_wrong_guesses_cost_next_to_nothing() -> None:
    """Covers one stream, and many, whose steps are expensive."""
    for streams in (1, 8):
        machine = Machine(lambda plan: 0.001 * plan.num_tokens)
        engine, _ = make(FakeGuesser(VOCABULARY, always(0)), machine)
        for key in range(streams):
            engine.add(key, request([key, 2, 3], max_tokens=150))
        run(engine)
        assert sum(machine.drafts) < 0.02 * 150 * streams + 20


def test_a_step_without_guesses_behind_one_with_them_is_not_what_such_steps_cost() -> None:
    """Such a step finds the draft's weights in the caches; compared with its cost, drafting would seem to pay."""

    def price(plan: StepPlan) -> float:
        drafts = [sum(len(each.draft_token_ids) for each in plan.scheduled) for plan in machine.plans[-30:]]
        if drafts[-1]:
            return 0.050
        return 0.020 if any(drafts[-2:]) or len(drafts) < 30 else 0.010

    machine = Machine(price)
    engine, _ = make(FakeGuesser(VOCABULARY, always(3)), machine)
    for key in range(30):
        engine.add(key, request([1, 2, 3], max_tokens=90))
        run(engine)
    late = machine.drafts[-600:]
    assert sum(map(bool, late)) < 0.05 * len(late)


def test_what_guesses_cost_is_learnt_where_each_step_has_a_prompt() -> None:
    """Rows are expensive; by the time the first drafts seem worthwhile, every step has a prompt."""
    machine = Machine(lambda plan: 0.002 + 0.001 * plan.num_tokens)
    guesser = FakeGuesser(VOCABULARY, lambda sequence: int(len(sequence.token_ids) > 30))
    engine, _ = make(guesser, machine, max_num_seqs=16, max_model_len=400)
    for key in range(8):
        engine.add(key, request([key, 1, 2], max_tokens=300))
    collected = Collected()
    for number in range(250):
        if number > 40:
            engine.add(8 + number, request([number, 1, 2, 3], max_tokens=1))
        collected.take(engine.step())
    assert 0 < sum(map(bool, machine.drafts)) < 25


def test_what_was_not_verified_is_compared_as_well() -> None:
    """A method that starts to be right is noticed even while none of its guesses are verified."""
    machine = Machine()
    guesser = FakeGuesser(VOCABULARY, lambda sequence: 4 if len(sequence.token_ids) > 100 else 0)
    engine, _ = make(guesser, machine, max_model_len=400)
    engine.add(0, request([1, 2, 3], max_tokens=300))
    run(engine)
    assert sum(machine.drafts[40:95]) < 20
    assert sum(machine.drafts[-20:]) > 60


def test_sequences_for_which_nothing_is_guessed_run_ahead() -> None:
    """Steps overlap while nothing is drafted, and run one after the other while something is."""
    for right, overlaps in ((0, True), (4, False)):
        machine = Machine(lambda plan: 0.001 * plan.num_tokens if plan.step > 20 else 0.01)
        guesser = FakeGuesser(VOCABULARY, always(right))
        engine, _ = make(guesser, machine, in_flight=2)
        engine.add(0, request([1, 2, 3], max_tokens=150))
        collected, behind = Collected(), []
        while engine.has_work:
            collected.take(engine.step())
            behind.append(sum(1 for plan in machine.plans if plan.scheduled) - len(collected.deltas))
        assert collected.tokens[0, 0] == expected([1, 2, 3], 150)
        assert (sum(behind[30:60]) > 15) == overlaps


@pytest.mark.parametrize(
    ("config", "sampling", "guessed"),
    [
        ({}, {}, 4),
        ({}, {"num_speculative_tokens": 0}, 0),
        ({}, {"num_speculative_tokens": 2}, 2),
        ({}, {"num_speculative_tokens": 60}, 4),
        ({}, {"logprobs": 1}, 0),
        ({"disable_logprobs": False}, {"logprobs": 1}, 4),
        ({"max_model_len": 2}, {}, 0),
        ({"max_model_len": 1000}, {}, 4),
        ({"disable_by_batch_size": 1}, {}, 4),
    ],
)
def test_who_is_guessed_for(config: dict[str, Any], sampling: dict[str, Any], guessed: int) -> None:
    machine = Machine()
    engine, _ = make(FakeGuesser(VOCABULARY, always(4)), machine, config=config)
    engine.add(0, request([1, 2, 3], max_tokens=60, **sampling))
    assert run(engine).tokens[0, 0] == expected([1, 2, 3], 60)
    assert max(machine.drafts) == guessed


def test_a_sequence_that_grows_too_long_is_guessed_for_no_more() -> None:
    machine = Machine()
    engine, _ = make(FakeGuesser(VOCABULARY, always(4)), machine, config={"max_model_len": 40})
    engine.add(0, request([1, 2, 3], max_tokens=80))
    run(engine)
    assert any(machine.drafts)
    ends = [
        each.num_computed_tokens + each.num_new_tokens
        for plan in machine.plans
        for each in plan.scheduled
        if each.draft_token_ids
    ]
    assert max(ends) <= 40


def test_new_requests_are_not_guessed_for_while_many_wait() -> None:
    """Requests that came earlier keep getting drafts."""
    machine = Machine()
    guesser = FakeGuesser(VOCABULARY, always(4))
    engine, _ = make(guesser, machine, config={"disable_by_batch_size": 2})
    for key in range(8):
        engine.add(key, request([key, 2, 3], max_tokens=40))
    run(engine)
    assert guesser.forgotten == 3  # the first three arrived while at most two were waiting


class Failing(FakeGuesser):
    """Raises at its third guess, or when a sequence ends."""

    def __init__(self, at_end: bool) -> None:
        super().__init__(VOCABULARY, always(4))
        self._at_end = at_end

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        if self.asked >= 3 and not self._at_end:
            raise IndexError("a bug")
        return super().guess(sequence, most)

    def forget(self, sequence: Sequence) -> None:
        raise KeyError("another")


@pytest.mark.parametrize("at_end", [False, True])
def test_a_worker_goes_on_without_what_guesses(at_end: bool, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    engine, _ = make(Failing(at_end), machine)
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=12 + key))
    with caplog.at_level(logging.ERROR):
        collected = run(engine)
    assert [collected.tokens[key, 0] for key in range(len(PROMPTS))] == [
        expected(prompt, 12 + key) for key, prompt in enumerate(PROMPTS)
    ]
    assert caplog.text.count("continues without speculation") == 1
    assert engine.load().counters.draft_failures == 1
    before = len(machine.plans)
    engine.add(99, request([5], max_tokens=10))
    run(engine)
    assert not any(machine.drafts[before:])


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_the_ranks_guess_is_verified_in_the_next_step(in_flight: int) -> None:
    machine = Machine()
    config = SpeculativeConfig("draft_model", "m", num_speculative_tokens=3)
    speculation = Speculation(config, None, machine.clock, overlaps=in_flight > 1)
    executor = FakeExecutor(VOCABULARY, 4, verify=True, on_step=machine.step, max_in_flight=in_flight, right_guesses=9)
    engine = make_engine(executor, machine.clock, drafter=speculation, num_blocks=200)
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=40))
    collected = run(engine)
    assert [collected.tokens[key, 0] for key in range(len(PROMPTS))] == [expected(prompt, 40) for prompt in PROMPTS]
    assert engine.load().counters.draft_accepted_tokens.sum > 60
    assert max(each.num_wanted_drafts for plan in machine.plans for each in plan.scheduled) == 3


def test_what_is_worth_it_for_one_sequence_is_not_taken_to_be_for_many_that_start_at_once() -> None:
    """A draft model would compute the prompts of all of them, only for its guesses not to be wanted."""
    machine = Machine()
    speculation = Speculation(SpeculativeConfig("draft_model", "m", num_speculative_tokens=3), None, machine.clock)
    executor = FakeExecutor(VOCABULARY, 4, verify=True, on_step=machine.step, right_guesses=9)
    engine = make_engine(executor, machine.clock, drafter=speculation, num_blocks=400, max_num_batched_tokens=200)
    engine.add(0, request([1, 2, 3], max_tokens=60))
    run(engine)
    assert machine.plans[-2].scheduled[0].num_wanted_drafts
    for key in range(1, 17):
        engine.add(key, request([key, 2, 3], max_tokens=5))
    begun = len(machine.plans)
    run(engine)
    started = machine.plans[begun].scheduled
    assert len(started) > 4
    assert sum(bool(each.num_wanted_drafts) for each in started) == 2


def test_lookahead_slots_are_blocks_that_a_sequence_has_in_advance() -> None:
    for slots, blocks in ((0, 1), (8, 3), (64, 6)):  # of four tokens; at most for the longest that it may become
        engine = make_engine(FakeExecutor(VOCABULARY, 4, verify=True), num_lookahead_slots=slots)
        engine.add(0, request([1, 2, 3], max_tokens=20))
        engine.step()
        assert engine.load().used_kv_blocks == blocks
        assert run(engine).tokens[0, 0][-1] == expected([1, 2, 3], 20)[-1]
        assert engine.load().used_kv_blocks == 0


def test_the_log_says_now_and_then_what_it_brings(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(lambda plan: 2.0)
    engine, _ = make(FakeGuesser(VOCABULARY, always(4)), machine, max_model_len=400)
    engine.add(0, request([1, 2, 3], max_tokens=300))
    with caplog.at_level(logging.INFO):
        run(engine)
    lines = [record.getMessage() for record in caplog.records if "speculation:" in record.getMessage()]
    assert lines
    assert "100% of these tokens were right: 4.9" in lines[-1]
