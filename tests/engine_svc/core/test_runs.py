"""Steps that yield several tokens per sequence: accepted drafts and the token sampled after them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine_svc.core.engine import Engine
from engine_svc.plan import StepPlan, StepResult
from engine_svc.requests.admission import make_sequences
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import ChoiceProgress
from engine_svc.requests.sequence import LiveRequest
from engine_svc.requests.stopping import Ending, find_ending
from tests.engine_svc.core.test_engine import PROMPTS, VOCABULARY, Collected, expected, make_engine, request, run
from tests.support.fake_drafter import FakeDrafter
from tests.support.fake_executor import FakeExecutor
from tests.support.rank_drafter import RankDrafter


def drafting(most: int, right: int | None = None, executor: FakeExecutor | None = None, **changes: Any) -> Engine:
    return make_engine(executor, drafter=FakeDrafter(VOCABULARY, most, right), **changes)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize(("budget", "blocks"), [(7, 200), (32, 36), (200, 200)])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_tokens_are_those_without_drafts(
    in_flight: int, budget: int, blocks: int, windows: tuple[int | None, ...]
) -> None:
    plans: list[StepPlan] = []
    executor = FakeExecutor(
        VOCABULARY, 4, verify=True, max_in_flight=in_flight, on_step=plans.append, windows=windows, max_model_len=140
    )
    engine = drafting(
        5, executor=executor, max_num_batched_tokens=budget, num_blocks=blocks * len(windows), windows=windows,
        max_model_len=140,
    )  # fmt: skip
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=40, n=2, logprobs=1))
    collected = run(engine)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == collected.tokens[key, 1] == expected(prompt, 40)
        assert collected.last[key].finish_reason is FinishReason.LENGTH
        usage = collected.last[key].usage
        assert usage is not None
        assert usage.completion_tokens == 80
    for delta in collected.deltas:
        assert [entry.token_ids[0] for entry in delta.logprobs or []] == delta.token_ids
    assert max(len(delta.token_ids) for delta in collected.deltas) > 3
    assert all(plan.num_tokens <= budget for plan in plans)
    assert engine.load().counters.generation_tokens == 80 * len(PROMPTS)
    assert engine.load().used_kv_blocks == 0


def test_a_run_takes_one_step() -> None:
    engine = drafting(4, right=4)
    engine.add(0, request([1, 2, 3], max_tokens=14))
    assert [len(delta.token_ids) for delta in run(engine).deltas] == [1, 5, 5, 3]


def test_a_stop_within_a_run_cuts_it_there() -> None:
    """Tokens after the stop are neither returned nor counted."""
    tokens = expected([1, 2, 3], 30)
    engine = drafting(9, right=9, eos_token_ids=frozenset([tokens[5]]))
    engine.add(0, request([1, 2, 3], stop_token_ids=(tokens[4],), logprobs=0))
    engine.add(1, request([1, 2, 3]))
    engine.add(2, request([1, 2, 3], ignore_eos=True, max_tokens=8))
    collected = run(engine)
    endings = [(collected.last[key].finish_reason, collected.last[key].stop_token_id) for key in range(3)]
    assert endings == [(FinishReason.STOP, tokens[4]), (FinishReason.STOP, None), (FinishReason.LENGTH, None)]
    assert [collected.tokens[key, 0] for key in range(3)] == [tokens[:5], tokens[:6], tokens[:8]]
    assert [len(collected.last[key].token_ids) for key in range(3)] == [4, 5, 7]
    assert len(collected.last[0].logprobs or []) == 4
    assert engine.load().counters.generation_tokens == 5 + 6 + 8


def test_what_lies_behind_a_stop_or_a_wrong_draft_is_not_in_the_cache() -> None:
    tokens = expected([1, 2, 3], 30)
    for right, stops in ((9, (tokens[4],)), (4, ())):
        engine = drafting(9, right=right)
        engine.add(0, request([1, 2, 3], stop_token_ids=stops))
        run(engine, steps=2)
        engine.abort(0)
        engine.add(1, request([1, 2, 3, *tokens[:20]], max_tokens=1))
        usage = run(engine).last[1].usage
        assert usage is not None
        assert usage.cached_prompt_tokens == (4 if stops else 8)  # of 3 + 5 and 3 + 6 tokens, less the last one each


def test_min_tokens_hold_within_a_run() -> None:
    tokens = expected([1, 2, 3], 30)
    engine = drafting(9, right=9, eos_token_ids=frozenset([tokens[3], tokens[7]]))
    engine.add(0, request([1, 2, 3], min_tokens=4))
    assert run(engine).tokens[0, 0] == tokens[:8]


@pytest.mark.parametrize(
    ("run", "ending"),
    [
        ([1, 2, 3], None),
        ([1, 7, 3], Ending(2, FinishReason.STOP)),
        ([1, 9, 7], Ending(2, FinishReason.STOP, 9)),
        ([1, 2, 3, 4, 7], Ending(4, FinishReason.LENGTH)),
        ([1, 2, 3, 7], Ending(4, FinishReason.STOP)),
    ],
)
def test_the_first_reason_in_a_run_ends_it(run: list[int], ending: Ending | None) -> None:
    live = LiveRequest(0, request([1] * 5, stop_token_ids=(9,), max_tokens=4), frozenset([7]), 0.0)
    (subject,) = make_sequences(live, (0, 0), 100, seed=0)
    assert find_ending(subject, run) == ending


def test_nobody_is_preempted_for_drafts() -> None:
    engine = drafting(8, right=0, num_blocks=7, max_model_len=28)
    for key, max_tokens in enumerate((20, 9)):
        engine.add(key, request([key, 2, 3], max_tokens=max_tokens))
    collected = run(engine)
    assert [collected.tokens[key, 0] for key in range(2)] == [expected([0, 2, 3], 20), expected([1, 2, 3], 9)]
    assert engine.load().counters.preemptions == 0


@pytest.mark.parametrize("in_flight", [1, 2])
def test_stop_strings_aborts_and_faults_between_runs(in_flight: int) -> None:
    executor = FakeExecutor(
        VOCABULARY, 4, verify=True, max_in_flight=in_flight,
        failed_slots=lambda plan: {2: "NaN"} if plan.step == 6 else {},
    )  # fmt: skip
    engine = drafting(3, executor=executor)
    prompts = [[key + 1, 2] for key in range(4)]
    for key, prompt in enumerate(prompts):
        engine.add(key, request(prompt, max_tokens=30))
    collected = run(engine, Collected(), steps=5)
    engine.stop(0, 0, 2)
    engine.abort(1)
    engine.check()
    run(engine, collected)
    reasons = [collected.last[key].finish_reason for key in range(4)]
    assert reasons == [FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR, FinishReason.LENGTH]
    for key, prompt in enumerate(prompts):
        assert collected.tokens[key, 0] == expected(prompt, 30)[: len(collected.tokens[key, 0])]
    usage = collected.last[0].usage
    assert usage is not None
    assert usage.completion_tokens == 2
    assert len(collected.tokens[3, 0]) == 30


def test_a_moved_request_goes_on_in_runs() -> None:
    prompt, tokens = list(range(18)), expected(list(range(18)), 20)
    engine = drafting(4)
    for cut in range(20):
        progress = (ChoiceProgress(tokens[:cut]), ChoiceProgress())
        engine.add(cut, request(prompt, n=2, max_tokens=20, prompt_logprobs=0, progress=progress))
    collected = run(engine)
    for cut in range(20):
        assert [collected.tokens[cut, choice] for choice in range(2)] == [tokens[cut:], tokens]
        told = [entry for delta in collected.deltas if delta.key == cut for entry in delta.prompt_logprobs or []]
        assert len(told) == (0 if cut else 17)


@pytest.mark.parametrize("run_of", [0, 3])
def test_runs_of_another_length_than_planned_are_noticed(run_of: int) -> None:
    class Miscounting(FakeExecutor):
        def step(self, plan: StepPlan) -> StepResult:
            return msgspec.structs.replace(super().step(plan), sampled_token_ids=[[5] * run_of])

    engine = make_engine(Miscounting(VOCABULARY, 4))
    engine.add(0, request([1], max_tokens=8))
    with pytest.raises(ValueError, match=f"run of {run_of} tokens"):
        engine.step()


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize(("budget", "blocks"), [(7, 200), (32, 36), (200, 200)])
@pytest.mark.parametrize("right", [0, 2, 9])
def test_tokens_are_those_without_guesses_of_the_ranks(in_flight: int, budget: int, blocks: int, right: int) -> None:
    plans: list[StepPlan] = []
    executor = FakeExecutor(
        VOCABULARY, 4, verify=True, max_in_flight=in_flight, on_step=plans.append, max_model_len=140,
        right_guesses=right,
    )  # fmt: skip
    engine = make_engine(
        executor, drafter=RankDrafter(5), max_num_batched_tokens=budget, num_blocks=blocks, max_model_len=140
    )
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=40, n=2))
    collected = run(engine)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == collected.tokens[key, 1] == expected(prompt, 40)
    longest = max(len(delta.token_ids) for delta in collected.deltas)
    assert longest == min(right, 5) + 1 if budget > 7 else longest > min(right, 1)
    assert all(plan.num_tokens <= budget for plan in plans)
    assert engine.load().used_kv_blocks == 0


def test_the_ranks_guess_for_a_step_that_samples_and_keep_up_with_prompts() -> None:
    plans: list[StepPlan] = []
    executor = FakeExecutor(VOCABULARY, 4, on_step=plans.append, right_guesses=9)
    engine = make_engine(executor, drafter=RankDrafter(3), max_num_batched_tokens=5)
    engine.add(0, request([1, 2, 3, 4, 5, 6, 7], max_tokens=9))
    assert [len(delta.token_ids) for delta in run(engine).deltas] == [1, 4, 4]
    scheduled = [plan.scheduled[0] for plan in plans]
    assert [(each.num_sampled_positions, each.num_wanted_drafts) for each in scheduled] == [
        (0, 3), (1, 3), (4, 3), (4, 2),
    ]  # fmt: skip


def test_nobody_is_preempted_for_guesses() -> None:
    executor = FakeExecutor(VOCABULARY, 4, max_model_len=28, right_guesses=9)
    engine = make_engine(executor, drafter=RankDrafter(8), num_blocks=7, max_model_len=28)
    for key, max_tokens in enumerate((20, 9)):
        engine.add(key, request([key, 2, 3], max_tokens=max_tokens))
    collected = run(engine)
    assert [collected.tokens[key, 0] for key in range(2)] == [expected([0, 2, 3], 20), expected([1, 2, 3], 9)]
    assert engine.load().counters.preemptions == 0


def test_where_the_draft_model_has_failed_nothing_is_wanted_any_more() -> None:
    plans: list[StepPlan] = []
    executor = FakeExecutor(VOCABULARY, 4, on_step=plans.append, right_guesses=9, draft_fails_in_step=2)
    drafter = RankDrafter(3)
    engine = make_engine(executor, drafter=drafter)
    engine.add(0, request([1, 2, 3], max_tokens=12))
    assert run(engine).tokens[0, 0] == expected([1, 2, 3], 12)
    assert drafter.failures == ["out of luck"]
    wanted = [plan.scheduled[0].num_wanted_drafts for plan in plans]
    assert wanted == [3, 3, 3] + [0] * (len(plans) - 3)
