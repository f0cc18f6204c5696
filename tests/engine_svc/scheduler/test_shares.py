"""Sequences are dealt to as many steps as there are stages: each is in one step at a time, and the steps are even."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine_svc.plan import StepPlan
from tests.engine_svc.core.test_engine import FACTS, VOCABULARY, Collected, expected, make_engine, request
from tests.support.fake_drafter import FakeDrafter
from tests.support.fake_executor import FakeExecutor


class Pipeline:
    """An engine whose executor has several stages, and the plans that it received."""

    def __init__(self, stages: int, prompts: Sequence[list[int]], max_tokens: int, drafts: int = 0, **changes: object):
        self.plans: list[StepPlan] = []
        self.under_way: list[list[StepPlan]] = []  # for each step, those submitted before it and not collected yet
        executor = FakeExecutor(
            VOCABULARY, FACTS.block_size, verify=True, max_in_flight=stages + 1, on_step=self._begin
        )
        drafter = FakeDrafter(VOCABULARY, drafts) if drafts else None
        self.engine = make_engine(executor, num_stages=stages, drafter=drafter, **changes)
        self.prompts, self.max_tokens = prompts, max_tokens
        for key, prompt in enumerate(prompts):
            self.engine.add(key, request(prompt, max_tokens=max_tokens))

    def _begin(self, plan: StepPlan) -> None:
        in_flight = len(self.engine._in_flight)
        self.under_way.append(self.plans[len(self.plans) - in_flight :])
        self.plans.append(plan)

    def run(self) -> None:
        found = Collected()
        while self.engine.has_work:
            found.take(self.engine.step())
            self.engine.check()
        for key, prompt in enumerate(self.prompts):
            assert found.tokens[key, 0] == expected(prompt, self.max_tokens)

    def decoding(self) -> list[list[int]]:
        """For each step, the slots that decode."""
        return [[each.slot for each in plan.scheduled if each.num_new_tokens == 1] for plan in self.plans]


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_sequence_is_in_one_step_at_a_time(stages: int, async_scheduling: bool) -> None:
    pipeline = Pipeline(stages, [[key] for key in range(8)], 20, async_scheduling=async_scheduling)
    pipeline.run()
    for plan, others in zip(pipeline.plans, pipeline.under_way, strict=True):
        taken = {each.slot for other in others[len(others) - stages + 1 :] for each in other.scheduled}
        assert taken.isdisjoint(each.slot for each in plan.scheduled)
        assert len(others) <= stages
    full = [len(slots) for slots in pipeline.decoding()][stages:-stages]
    assert max(full) == -(-8 // stages)
    assert sum(full) >= len(full) * 8 / stages - 8


def test_those_that_are_left_are_dealt_anew() -> None:
    """When half of eight sequences, all in one step, end, the others are spread over both steps again."""
    prompts = [[key] for key in range(8)]
    pipeline = Pipeline(2, prompts, 30)
    while len(pipeline.plans) < 6:
        pipeline.engine.step()
    for slot in pipeline.decoding()[-1]:
        key = next(each.owner.key for each in pipeline.engine._scheduler._running if each.slot == slot)
        pipeline.engine.abort(key)
    start = len(pipeline.plans)
    while pipeline.engine.has_work:
        pipeline.engine.step()
    assert [len(slots) for slots in pipeline.decoding()[start + 2 : start + 12]] == [2] * 10


def test_parts_of_a_long_prompt_follow_each_other_at_once() -> None:
    pipeline = Pipeline(4, [list(range(150))], 2)
    for _ in range(4):
        pipeline.engine.step()
    assert [plan.num_tokens for plan in pipeline.plans] == [32] * 4
    pipeline.run()


def test_prompts_that_fit_one_step_are_shared_out() -> None:
    """A step's budget is 32 tokens, of which each of two stages takes half, and not less."""
    pipeline = Pipeline(2, [[key] * 4 for key in range(6)], 1)
    pipeline.run()
    assert [plan.num_tokens for plan in pipeline.plans] == [16, 8]


def test_whole_prompts_stay_whole() -> None:
    pipeline = Pipeline(2, [list(range(30)), list(range(20))], 1, enable_chunked_prefill=False)
    pipeline.run()
    assert [plan.num_tokens for plan in pipeline.plans] == [30, 20]


@pytest.mark.parametrize("blocks", [20, 60])
@pytest.mark.parametrize("drafts", [0, 3])
def test_tokens_stay_under_shortage_and_with_drafts(blocks: int, drafts: int) -> None:
    prompts = [list(range(key, key + 12)) for key in range(6)]
    pipeline = Pipeline(3, prompts, 25, drafts, num_blocks=blocks, max_model_len=60)
    pipeline.run()
    assert (pipeline.engine.load().counters.preemptions > 0) == (blocks == 20)
