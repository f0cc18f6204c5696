"""The engine with the fake executor, whose tokens prove that blocks, slots and counts are right."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.executor.base import ExecutorDead
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.plan import CacheSize, StepPlan, StepResult
from engine_svc.requests.admission import sequence_seed
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from engine_svc.scheduler.drafter import Drafter
from quire.errors import DeadlineExceeded, Internal, Unavailable
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan

VOCABULARY = 1000
FACTS = EngineFacts(num_blocks=64, block_size=4, max_model_len=200, max_num_batched_tokens=32)


def make_engine(
    executor: FakeExecutor | None = None,
    clock: Callable[[], float] = time.monotonic,
    drafter: Drafter | None = None,
    connector: KvConnector | None = None,
    **changes: Any,
) -> Engine:
    """Creates an engine; `changes` replace fields of the facts or options."""
    known = {field.name for field in dataclasses.fields(FACTS)}
    facts = dataclasses.replace(FACTS, **{name: value for name, value in changes.items() if name in known})
    options = engine_options(**{"max_num_seqs": 8} | {name: changes[name] for name in changes.keys() - known})
    executor = executor or FakeExecutor(VOCABULARY, facts.block_size, verify=True)
    executor.allocate(CacheSize(facts.num_blocks, facts.num_host_blocks))
    return Engine(executor, options, facts, clock, drafter, [connector] if connector is not None else [])


def request(prompt: list[int], **sampling: Any) -> GenerationRequest:
    fields = {
        name: sampling.pop(name)
        for name in ("timeout_seconds", "priority", "cache_salt", "progress")
        if name in sampling
    }
    return GenerationRequest("r", prompt, SamplingParameters(**({"temperature": 0.0} | sampling)), **fields)


def expected(prompt: list[int], count: int) -> list[int]:
    return expected_tokens(prompt, count, VOCABULARY, sampling_plan(temperature=0.0))


class Collected:
    """Collects the deltas of each request."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.places: dict[tuple[int, int], int] = {}  # where each sequence continues
        self.last: dict[int, SequenceDelta] = {}
        self.reasons: dict[tuple[int, int], FinishReason] = {}
        self.deltas: list[SequenceDelta] = []

    def take(self, deltas: list[SequenceDelta]) -> None:
        for delta in deltas:
            assert delta.key not in self.last, "a delta after the final one"
            self.deltas.append(delta)
            sequence = delta.key, delta.choice_index
            self.tokens[sequence] += delta.token_ids
            if delta.num_previous_tokens is not None:
                assert self.places.get(sequence, delta.num_previous_tokens) == delta.num_previous_tokens
                self.places[sequence] = delta.num_previous_tokens + len(delta.token_ids)
            assert bool(delta.token_ids) == (delta.num_previous_tokens is not None)
            if delta.finish_reason is not None:
                assert (delta.key, delta.choice_index) not in self.reasons or delta.is_final
                self.reasons[delta.key, delta.choice_index] = delta.finish_reason
            if delta.is_final:
                self.last[delta.key] = delta


def run(engine: Engine, collected: Collected | None = None, steps: int = 10_000) -> Collected:
    collected = collected or Collected()
    for _ in range(steps):
        if not engine.has_work:
            break
        collected.take(engine.step())
        engine.check()
    return collected


PROMPTS = [
    list(range(start, start + length)) for start, length in ((1, 1), (2, 3), (3, 4), (9, 37), (5, 64), (70, 100))
]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [1, 7, 32, 200])
@pytest.mark.parametrize("blocks", [200, 50, 36])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_tokens_depend_on_nothing_but_the_prompt(caching: bool, budget: int, blocks: int, in_flight: int) -> None:
    executor = FakeExecutor(VOCABULARY, FACTS.block_size, verify=True, max_in_flight=in_flight)
    engine = make_engine(
        executor, enable_prefix_caching=caching, max_num_batched_tokens=budget, num_blocks=blocks, max_model_len=140
    )
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=40))
    collected = run(engine)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == expected(prompt, 40)
        assert collected.last[key].finish_reason is FinishReason.LENGTH
    assert engine.load().used_kv_blocks == 0
    if blocks == 36 and budget > 1:
        assert engine.load().counters.preemptions > 0


def test_whole_prompts_without_chunking() -> None:
    plans: list[StepPlan] = []
    executor = FakeExecutor(VOCABULARY, 4, verify=True, on_step=plans.append)
    engine = make_engine(executor, enable_chunked_prefill=False, max_num_batched_tokens=200, num_blocks=60)
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=30))
    collected = run(engine)
    assert all(collected.tokens[key, 0] == expected(prompt, 30) for key, prompt in enumerate(PROMPTS))
    assert all(scheduled.num_sampled_positions for plan in plans for scheduled in plan.scheduled)
    assert all(plan.num_tokens <= 200 for plan in plans)


def test_prefix_cache_hits_are_counted_and_change_nothing() -> None:
    engine = make_engine()
    prompt = list(range(40))
    for key in range(2):
        engine.add(key, request(prompt, max_tokens=5))
        collected = run(engine)
        assert collected.tokens[key, 0] == expected(prompt, 5)
        usage = collected.last[key].usage
        assert usage is not None
        assert usage.cached_prompt_tokens == (0, 36)[key]
    counters = engine.load().counters
    assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == (80, 36)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("slots", "blocks"), [(8, 64), (2, 64), (1, 64), (8, 20)])
def test_choices_share_the_prompts_blocks(caching: bool, slots: int, blocks: int) -> None:
    computed = []
    executor = FakeExecutor(VOCABULARY, 4, verify=True, on_step=lambda plan: computed.append(plan.num_tokens))
    engine = make_engine(
        executor, enable_prefix_caching=caching, max_num_seqs=slots, num_blocks=blocks, max_model_len=80
    )
    prompt = list(range(41))
    engine.add(0, request(prompt, n=4, max_tokens=10, temperature=1.0, seed=5))
    collected = run(engine)
    for choice in range(4):
        plan = sampling_plan(temperature=1.0, seed=sequence_seed(5, choice))
        assert collected.tokens[0, choice] == expected_tokens(prompt, 10, VOCABULARY, plan)
    assert sum(delta.is_final for delta in collected.deltas) == 1
    usage = collected.last[0].usage
    assert usage is not None
    assert (usage.completion_tokens, usage.prompt_tokens) == (40, 41)
    if blocks == 64:
        assert sum(computed) == 41 + 9 + 3 * (1 + 9)  # only the prompt's tail again
    assert len({tuple(tokens) for tokens in collected.tokens.values()}) == 4


def test_stops() -> None:
    prompt = [1, 2, 3]
    tokens = expected(prompt, 30)
    eos, stop = tokens[4], tokens[9]
    assert eos not in tokens[:4]
    assert stop not in tokens[:9]
    engine = make_engine(eos_token_ids=frozenset([eos]))
    engine.add(0, request(prompt))
    engine.add(1, request(prompt, ignore_eos=True, stop_token_ids=(stop,), max_tokens=30))
    engine.add(2, request(prompt, min_tokens=5, max_tokens=30))
    engine.add(3, request(prompt, ignore_eos=True))
    collected = run(engine)
    assert collected.tokens[0, 0] == tokens[:5]
    assert (collected.last[0].finish_reason, collected.last[0].stop_token_id) == (FinishReason.STOP, None)
    assert collected.tokens[1, 0] == tokens[:10]
    assert (collected.last[1].finish_reason, collected.last[1].stop_token_id) == (FinishReason.STOP, stop)
    assert len(collected.tokens[2, 0]) > 5
    assert len(collected.tokens[3, 0]) == 200 - 3
    assert collected.last[3].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("budget", "blocks"), [(3, 300), (32, 30), (200, 300)])
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6)])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_resumed_request_goes_on_as_if_it_had_not_moved(
    caching: bool, budget: int, blocks: int, windows: tuple[int | None, ...], in_flight: int
) -> None:
    executor = FakeExecutor(VOCABULARY, 4, verify=True, windows=windows, max_in_flight=in_flight)
    engine = make_engine(
        executor, enable_prefix_caching=caching, max_num_batched_tokens=budget, windows=windows,
        num_blocks=blocks * len(windows), max_model_len=60,
    )  # fmt: skip
    prompt, seed = list(range(18)), 5
    plans = [sampling_plan(temperature=1.0, seed=sequence_seed(seed, choice)) for choice in range(3)]
    whole = [expected_tokens(prompt, 20, VOCABULARY, plan) for plan in plans]
    for cut in range(20):
        progress = (ChoiceProgress(whole[0][:cut]), ChoiceProgress(whole[1][:7], True), ChoiceProgress())
        engine.add(cut, request(prompt, n=3, max_tokens=20, temperature=1.0, seed=seed, progress=progress))
    collected = run(engine)
    for cut in range(20):
        assert [collected.tokens[cut, choice] for choice in range(3)] == [whole[0][cut:], [], whole[2]]
        assert [collected.places[cut, choice] for choice in (0, 2)] == [20, 20]
        assert (cut, 1) not in collected.reasons
        usage = collected.last[cut].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (18, 47)
    counters = engine.load().counters
    assert (counters.prompt_tokens, counters.generation_tokens) == (18 * 20, sum(range(1, 21)) + 20 * 20)
    assert engine.load().used_kv_blocks == 0


@pytest.mark.parametrize("ending", [{}, {"ignore_eos": True}, {"min_tokens": 8}, {"stop": True}])
def test_a_resumed_request_ends_where_it_would_have(ending: dict[str, Any]) -> None:
    prompt, ending = [1, 2, 3], dict(ending)
    tokens = expected(prompt, 30)
    if ending.pop("stop", False):
        ending["stop_token_ids"] = (tokens[6],)
    engine = make_engine(eos_token_ids=frozenset([tokens[4], tokens[9]]))
    engine.add(0, request(prompt, max_tokens=12, **ending))
    whole = run(engine)
    count = len(whole.tokens[0, 0])
    assert count == {"ignore_eos": 12, "min_tokens": 10}.get(next(iter(ending), ""), 5)
    for cut in range(1, count):
        engine.add(cut, request(prompt, max_tokens=12, progress=(ChoiceProgress(tokens[:cut]),), **ending))
    collected = run(engine)
    for cut in range(1, count):
        assert collected.tokens[cut, 0] == tokens[cut:count]
        assert collected.last[cut].finish_reason is whole.last[0].finish_reason


def test_a_resumed_request_sends_no_prompt_logprobs_again() -> None:
    engine = make_engine()
    prompt = list(range(20))
    tokens = expected(prompt, 5)
    fields: dict[str, Any] = {"n": 2, "max_tokens": 5, "prompt_logprobs": 0}
    cases = [
        ((ChoiceProgress(tokens[:1]), ChoiceProgress()), 0),
        ((ChoiceProgress(tokens, True), ChoiceProgress(tokens[:3])), 0),
        ((ChoiceProgress(), ChoiceProgress(tokens[:3])), 19),
        ((ChoiceProgress(), ChoiceProgress(tokens, True)), 19),
        ((ChoiceProgress(), ChoiceProgress()), 19),
    ]
    for key, (progress, _) in enumerate(cases):
        engine.add(key, request(prompt, progress=progress, **fields))
    collected = run(engine)
    for key, (_, count) in enumerate(cases):
        deltas = [delta for delta in collected.deltas if delta.key == key]
        assert sum(len(delta.prompt_logprobs or []) for delta in deltas) == count
        assert all(delta is deltas[0] for delta in deltas if delta.prompt_logprobs)


def test_a_resumed_request_is_aborted() -> None:
    engine = make_engine()
    engine.add(0, request(list(range(30)), n=2, progress=(ChoiceProgress([4]), ChoiceProgress([5, 6]))))
    collected = run(engine, steps=4)
    engine.abort(0)
    engine.check()
    assert engine.load().used_kv_blocks == 0
    assert run(engine, collected).last[0].finish_reason is FinishReason.ABORT


def test_logprobs_are_handed_through() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    prompt = list(range(40))
    engine.add(0, request(prompt, max_tokens=3))
    run(engine)
    engine.add(1, request(prompt, max_tokens=3, logprobs=2, prompt_logprobs=1, n=2))
    collected = run(engine)
    with_prompt = [delta for delta in collected.deltas if delta.prompt_logprobs]
    assert [delta.choice_index for delta in with_prompt] == [0]
    assert [entry.token_ids[0] for entry in with_prompt[0].prompt_logprobs or []] == prompt[1:]
    assert all(len(delta.logprobs or []) == len(delta.token_ids) for delta in collected.deltas)
    usage = collected.last[1].usage
    assert usage is not None
    assert usage.cached_prompt_tokens == 0


@pytest.mark.parametrize("n", [1, 3])
def test_prompt_only(n: int) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    prompt = list(range(20))
    engine.add(0, request(prompt, max_tokens=0, prompt_logprobs=0, n=n))
    collected = run(engine)
    assert [entry.token_ids for entry in collected.deltas[0].prompt_logprobs or []] == [[t] for t in prompt[1:]]
    assert set(collected.reasons.values()) == {FinishReason.LENGTH}
    assert len(collected.reasons) == n
    assert engine.load().counters.generation_tokens == 0


def test_prompt_logprobs_survive_preemption() -> None:
    engine = make_engine(num_blocks=16, max_model_len=64, max_num_batched_tokens=6)
    prompts = [list(range(start, start + 24)) for start in (0, 100)]
    engine.add(0, request(prompts[0], max_tokens=40))
    engine.add(1, request(prompts[1], max_tokens=30, prompt_logprobs=0))
    collected = run(engine)
    assert engine.load().counters.preemptions > 0
    entries = [entry for delta in collected.deltas for entry in delta.prompt_logprobs or []]
    assert [entry.token_ids[0] for entry in entries] == prompts[1][1:]
    assert collected.tokens[1, 0] == expected(prompts[1], 30)


def test_abort_frees_at_once() -> None:
    engine = make_engine()
    collected = Collected()
    for key in range(12):  # more than there are slots: some wait
        engine.add(key, request(list(range(key, key + 20)), max_tokens=50, n=2))
    run(engine, collected, steps=5)
    for key in range(12):
        engine.abort(key)
        engine.check()
    assert engine.load().used_kv_blocks == 0
    run(engine, collected)
    assert {delta.finish_reason for delta in collected.last.values()} == {FinishReason.ABORT}
    assert len(collected.last) == 12
    engine.abort(3)
    assert not engine.has_work


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_stop_string_ends_one_sequence(in_flight: int) -> None:
    """The other sequence goes on; usage counts tokens before the stop, the counters all computed tokens."""
    engine = make_engine(FakeExecutor(VOCABULARY, FACTS.block_size, verify=True, max_in_flight=in_flight))
    prompt = list(range(21))
    for key in range(2):
        engine.add(key, request(prompt, n=2, max_tokens=30))
    collected = run(engine, steps=6)
    generated = len(collected.tokens[0, 1])
    assert 3 <= generated < 8
    engine.stop(0, 1, 3)
    engine.check()
    engine.stop(0, 1, 3)  # has already ended
    engine.stop(0, 2, 3)
    engine.stop(7, 0, 3)
    assert engine.load().running_sequences == 3
    run(engine, collected)
    assert collected.tokens[0, 0] == collected.tokens[1, 0] == collected.tokens[1, 1] == expected(prompt, 30)
    assert collected.tokens[0, 1] == expected(prompt, generated)
    assert (collected.reasons[0, 0], collected.reasons[0, 1]) == (FinishReason.LENGTH, FinishReason.STOP)
    usage = collected.last[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (21, 33)
    assert engine.load().counters.generation_tokens == 90 + generated
    assert engine.load().used_kv_blocks == 0


def test_the_last_sequence_that_a_stop_string_ends_ends_the_request() -> None:
    engine = make_engine()
    prompt = list(range(40))
    collected = Collected()
    for key in range(2):
        engine.add(key, request(prompt, n=2, max_tokens=100))
        run(engine, collected, steps=6)
        engine.stop(key, 0, 2)
        run(engine, collected, steps=1)
        assert key not in collected.last
        engine.stop(key, 1, 1)
        assert engine.load().used_kv_blocks == engine.load().running_sequences == 0
        run(engine, collected)
        usage = collected.last[key].usage
        assert usage is not None
        assert (usage.completion_tokens, usage.cached_prompt_tokens) == (3, (0, 36)[key])
        assert collected.last[key].finish_reason is FinishReason.STOP
        assert usage.decode_seconds > 0
    engine.stop(0, 0, 2)
    assert not engine.has_work


@pytest.mark.parametrize("stopped", [[0], [1], [0, 1], [1, 0], [2, 1]])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_stop_string_ends_sequences_whose_prompt_is_not_computed(stopped: list[int], steps: int) -> None:
    """Covers a moved request, whose other choices wait for the first one to compute the prompt that they share."""
    engine = make_engine(max_num_batched_tokens=8)
    prompt = list(range(40))
    tokens = expected(prompt, 9)
    progress = tuple(ChoiceProgress(tokens[:count]) for count in (2, 3, 4))
    engine.add(0, request(prompt, n=3, max_tokens=9, progress=progress))
    collected = run(engine, steps=steps)
    for choice in stopped:
        engine.stop(0, choice, 1)
        engine.check()
    run(engine, collected)
    for choice in range(3):
        rest = [] if choice in stopped else tokens[2 + choice :]
        assert collected.tokens[0, choice] == rest
        assert collected.reasons[0, choice] is (FinishReason.STOP if choice in stopped else FinishReason.LENGTH)
    usage = collected.last[0].usage
    assert usage is not None
    assert usage.completion_tokens == sum(1 if choice in stopped else 9 for choice in range(3))
    assert engine.load().used_kv_blocks == 0


def test_deadline_ends_running_and_waiting() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0], max_num_seqs=1)
    engine.add(0, request([1, 2], max_tokens=100, timeout_seconds=5.0))
    engine.add(1, request([1, 2], max_tokens=100, timeout_seconds=3.0))
    engine.add(2, request([1, 2], max_tokens=4))
    collected = Collected()
    for _ in range(8):
        collected.take(engine.step())
        now[0] += 1.0
    run(engine, collected)
    assert isinstance(collected.last[0].error, DeadlineExceeded)
    assert isinstance(collected.last[1].error, DeadlineExceeded)
    assert collected.tokens[1, 0] == []
    assert collected.tokens[2, 0] == expected([1, 2], 4)


def test_timings_follow_the_clock() -> None:
    now = [100.0]

    def advance(plan: StepPlan) -> None:
        now[0] += 1.0

    executor = FakeExecutor(VOCABULARY, 4, on_step=advance)
    engine = make_engine(executor, clock=lambda: now[0], max_num_batched_tokens=8)
    engine.add(0, request(list(range(16)), max_tokens=4), arrival_time=98.0)
    usage = run(engine).last[0].usage
    assert usage is not None
    assert (usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds) == (2.0, 2.0, 3.0)


def test_a_failed_slot_fails_its_request_only() -> None:
    executor = FakeExecutor(VOCABULARY, 4, verify=True, failed_slots=lambda plan: {1: "NaN"} if plan.step == 3 else {})
    engine = make_engine(executor)
    for key in range(3):
        engine.add(key, request([key + 1, 2], max_tokens=8))
    collected = run(engine)
    assert isinstance(collected.last[1].error, Internal)
    assert collected.last[1].error.reason == "REQUEST_FAULT"
    assert [collected.tokens[key, 0] for key in (0, 2)] == [expected([key + 1, 2], 8) for key in (0, 2)]


def test_a_step_that_raises_fails_its_batch_and_the_engine_goes_on() -> None:
    def fail_once(plan: StepPlan) -> None:
        if plan.step == 2:
            raise ValueError("kernel")

    engine = make_engine(FakeExecutor(VOCABULARY, 4, verify=True, on_step=fail_once), max_num_seqs=2)
    for key in range(4):
        engine.add(key, request([key + 1, 2], max_tokens=8))
    collected = run(engine)
    assert [type(collected.last[key].error) for key in range(4)] == [Internal, Internal, type(None), type(None)]
    assert collected.tokens[3, 0] == expected([4, 2], 8)


def test_later_requests_find_nothing_of_those_that_outlive_a_failed_step() -> None:
    """Of two requests in separate steps, one fails, and the other goes on from a cache that may be corrupt."""

    def spoil(plan: StepPlan) -> None:
        if plan.step == 13:
            executor._cache[:] = [[(0, 12345)] * 4 for _ in executor._cache]
            raise ValueError("kernel")

    executor = FakeExecutor(VOCABULARY, 4, on_step=spoil, max_in_flight=2)
    engine = make_engine(executor, num_stages=2)
    engine.add(0, request(PROMPTS[1], max_tokens=20))
    engine.add(1, request([77], max_tokens=30))
    collected = run(engine)
    assert (collected.last[0].error, type(collected.last[1].error)) == (None, Internal)
    longer = PROMPTS[1] + collected.tokens[0, 0]
    for key in (2, 3):
        engine.add(key, request(longer, max_tokens=5))
        run(engine, collected)
        assert collected.tokens[key, 0] == expected(longer, 5)


def test_nothing_waits_of_a_prompt_whose_step_has_failed() -> None:
    """Otherwise a router would send the worker no more requests, and no step would ever correct the figure."""

    def fail(plan: StepPlan) -> None:
        raise ValueError("kernel")

    engine = make_engine(FakeExecutor(VOCABULARY, 4, on_step=fail), max_num_batched_tokens=8)
    engine.add(0, request(list(range(100)), max_tokens=8))
    run(engine)
    assert engine.load().waiting_prefill_tokens == 0


def test_an_executor_that_keeps_failing_is_dead() -> None:
    def fail(plan: StepPlan) -> None:
        raise ValueError("kernel")

    engine = make_engine(FakeExecutor(VOCABULARY, 4, on_step=fail), max_num_seqs=1)
    for key in range(5):
        engine.add(key, request([1], max_tokens=8))
    engine.step()
    engine.step()
    with pytest.raises(ExecutorDead):
        engine.step()
    collected = Collected()
    collected.take(engine.give_up(Unavailable("gone")))
    assert sorted(collected.last) == [2, 3, 4]
    assert not engine.has_work
    engine.check()


def test_seeds_are_mixed() -> None:
    seeds = {sequence_seed(seed, choice) for seed in range(-50, 50) for choice in range(128)}
    assert len(seeds) == 100 * 128
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sequence_seed(7, 1) == sequence_seed(7, 1)


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 9e-6])
def test_temperatures_that_are_greedy(temperature: float) -> None:
    engine = make_engine()
    engine.add(0, request([1, 2], temperature=temperature, seed=3, max_tokens=8))
    assert run(engine).tokens[0, 0] == expected([1, 2], 8)


def test_unset_seeds_differ() -> None:
    engine = make_engine()
    for key in range(2):
        engine.add(key, request([1, 2], temperature=1.0, max_tokens=8))
    collected = run(engine)
    assert collected.tokens[0, 0] != collected.tokens[1, 0]


def test_a_server_with_a_seed_says_the_same_again() -> None:
    engines = [make_engine(seed=seed) for seed in (7, 7, 8)]
    for engine in engines:
        for key in range(3):
            engine.add(key, request([1, 2], temperature=1.0, max_tokens=8))
    found = [run(engine).tokens for engine in engines]
    assert found[0] == found[1] != found[2]
    assert found[0][0, 0] != found[0][1, 0]


def test_missing_tokens_are_noticed() -> None:
    class Forgetful(FakeExecutor):
        def step(self, plan: StepPlan) -> StepResult:
            result = super().step(plan)
            return msgspec.structs.replace(
                result, sampled_slots=result.sampled_slots[1:], sampled_token_ids=result.sampled_token_ids[1:]
            )

    engine = make_engine(Forgetful(VOCABULARY, 4))
    engine.add(0, request([1], max_tokens=8))
    with pytest.raises(RuntimeError, match="1 of 1 tokens"):
        engine.step()
