"""Pausing, sleeping and resetting the cache do not change any token."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engine_svc.core.engine import Engine
from engine_svc.plan import StepPlan
from engine_svc.requests.admission import sequence_seed
from engine_svc.requests.outputs import EngineStatus, FinishReason
from engine_svc.upkeep import ReleaseMemory, RestoreCache, RestoreWeights
from quire.errors import Conflict, DeadlineExceeded, FailedPrecondition
from quire.images import Image, ImageInput
from quire.sleep import PARTS, SleepLevel
from tests.engine_svc.core.test_awaited_blocks import PROMPT, Fare, Remote, filled, make_worker
from tests.engine_svc.core.test_engine import (
    PROMPTS,
    VOCABULARY,
    Collected,
    expected,
    make_engine,
    request,
    run,
)
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan


def engine_over(in_flight: int, **changes: Any) -> tuple[Engine, FakeExecutor]:
    executor = FakeExecutor(VOCABULARY, 4, verify=True, max_in_flight=in_flight)
    return make_engine(executor, **({"max_model_len": 150, "num_blocks": 200} | changes)), executor


def rest_and_go_on(engine: Engine, level: SleepLevel | None) -> None:
    """Pauses or sleeps and goes on, calling everything twice, since repeated commands change nothing."""
    for _ in range(2):
        engine.rest.pause() if level is None else engine.rest.sleep(level)
    assert not engine.load().busy
    for _ in range(2):
        engine.rest.resume() if level is None else engine.rest.wake_up(PARTS)
    engine.check()


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("level", [None, *SleepLevel])
def test_requests_that_stay_go_on_token_for_token(level: SleepLevel | None, in_flight: int) -> None:
    """Covers queued requests and those in prompts and outputs, with the host tier, and blocks too few for all."""
    engine, executor = engine_over(in_flight, num_blocks=60, num_host_blocks=20, max_num_seqs=4)
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=30))
    engine.add(9, request(PROMPTS[3], n=3, max_tokens=12, temperature=1.0, seed=5))
    collected = Collected()
    for steps in (0, 1, 3, 7, 20):
        run(engine, collected, steps)
        rest_and_go_on(engine, level)
    run(engine, collected)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == expected(prompt, 30)
    for choice in range(3):
        plan = sampling_plan(temperature=1.0, seed=sequence_seed(5, choice))
        assert collected.tokens[9, choice] == expected_tokens(PROMPTS[3], 12, VOCABULARY, plan)
    assert engine.load().used_kv_blocks == 0
    gives_back = level is not None and level > SleepLevel.PAUSED
    assert executor.asked[:3] == (
        [ReleaseMemory(level is SleepLevel.WEIGHTS_FORGOTTEN), RestoreWeights(), RestoreCache()] if gives_back else []
    )


@pytest.mark.parametrize("in_flight", [1, 2])
def test_requests_go_on_after_only_the_cache_was_released(in_flight: int) -> None:
    engine, executor = engine_over(in_flight)
    engine.add(0, request(PROMPTS[0], max_tokens=30))
    collected = run(engine, steps=5)
    with pytest.raises(Conflict, match="use /pause first"):
        engine.rest.release_cache()
    engine.rest.pause()
    engine.rest.release_cache()
    assert executor.asked == [ReleaseMemory(keeps_weights=True)]
    with pytest.raises(Conflict, match="/wake_up first"):
        engine.rest.release_cache()
    engine.rest.wake_up(["kv_cache"])
    run(engine, collected)
    assert collected.tokens[0, 0] == expected(PROMPTS[0], 30)


def test_a_paused_engine_computes_nothing_and_still_ends_requests() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0])
    for key, seconds in ((0, None), (1, 5.0), (2, None)):
        engine.add(key, request([1, 2, key], max_tokens=50, timeout_seconds=seconds))
    collected = run(engine, steps=3)
    engine.rest.pause()
    engine.add(3, request([5], max_tokens=2))
    told = len(collected.deltas)
    assert not engine.has_work
    assert engine.load().running_sequences == 3
    now[0] = 6.0
    engine.abort(2)
    run(engine, collected)
    assert {delta.key: delta.finish_reason for delta in collected.deltas[told:]} == {
        1: FinishReason.ERROR, 2: FinishReason.ABORT,
    }  # fmt: skip
    assert isinstance(collected.last[1].error, DeadlineExceeded)
    engine.rest.resume()
    run(engine, collected)
    assert collected.tokens[0, 0] == expected([1, 2, 0], 50)
    assert collected.tokens[3, 0] == expected([5], 2)


def test_nothing_waits_of_a_prompt_that_was_aborted_asleep() -> None:
    engine, _ = engine_over(1, max_num_batched_tokens=8)
    engine.add(0, request(PROMPTS[5], max_tokens=5))
    run(engine, steps=2)
    engine.rest.sleep(SleepLevel.WEIGHTS_KEPT)
    assert engine.load().waiting_prefill_tokens == len(PROMPTS[5])  # the whole prompt, without counting any part twice
    engine.abort(0)
    run(engine)
    engine.rest.wake_up(PARTS)
    assert engine.load().waiting_prefill_tokens == 0


@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_nothing_of_before_a_reset_is_found_after_it(preempts: bool, in_flight: int) -> None:
    """Blocks that running requests hold or compute after the reset are not found either, and these requests go on."""
    engine, _ = engine_over(in_flight, num_host_blocks=10)
    prompt = PROMPTS[5]
    engine.add(0, request(prompt, max_tokens=40))
    collected = run(engine, steps=10)
    engine.rest.reset_prefix_cache(preempts)
    longer = prompt + expected(prompt, 30)
    run(engine, collected, steps=25)
    engine.add(1, request(longer[:60], max_tokens=1))
    run(engine, collected)
    usage = collected.last[1].usage
    assert usage is not None
    assert collected.tokens[0, 0] == expected(prompt, 40)
    assert (usage.cached_prompt_tokens > 0) == preempts  # the running request was recomputed, so its blocks are found
    engine.add(2, request(longer, max_tokens=1))
    run(engine, collected)
    usage = collected.last[2].usage
    assert usage is not None
    assert usage.cached_prompt_tokens == (128 if preempts else 60)
    assert collected.tokens[2, 0] == expected(longer, 1)


def test_after_a_reset_images_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executor = engine_over(1, enable_prefix_caching=False)
    submit, encoded = executor.submit, []

    def watched(plan: StepPlan) -> None:
        encoded.extend(plan.images.begun)
        submit(plan)

    monkeypatch.setattr(executor, "submit", watched)
    image = Image(5, 4, (ImageInput("pixel_values", "uint8", (1,), b"0"),))
    for key, count in enumerate((1, 1, 2)):
        if key == 2:
            engine.rest.reset_encoder_cache()
        engine.add(key, dataclasses.replace(request(PROMPTS[3], max_tokens=2), images=(image,)))
        run(engine)
        assert len(encoded) == count


def test_parts_wake_one_after_the_other() -> None:
    engine, executor = engine_over(1)
    engine.add(0, request(PROMPT, max_tokens=5))
    run(engine, steps=2)
    engine.rest.sleep(SleepLevel.WEIGHTS_KEPT)
    engine.rest.sleep(SleepLevel.PAUSED)
    assert engine.load().status.sleep_level == SleepLevel.WEIGHTS_KEPT
    engine.rest.sleep(SleepLevel.WEIGHTS_FORGOTTEN)
    with pytest.raises(Conflict, match=r"level 2.*wake_up"):
        engine.rest.resume()
    with pytest.raises(Conflict, match="wake them first"):
        engine.rest.wake_up(["kv_cache"])
    engine.rest.wake_up(["weights"])
    assert engine.load().status.asleep == ("kv_cache",)
    assert not engine.has_work
    engine.rest.wake_up(["kv_cache"])
    assert (engine.load().status.asleep, engine.load().status.sleep_level) == ((), None)
    assert run(engine).tokens[0, 0][-3:] == expected(PROMPT, 5)[-3:]
    assert executor.asked == [
        ReleaseMemory(False), ReleaseMemory(True), RestoreWeights(), RestoreCache()
    ]  # fmt: skip


@pytest.mark.parametrize("command", [RestoreWeights, RestoreCache])
def test_without_memory_it_sleeps_on_until_there_is_some(command: type[RestoreWeights | RestoreCache]) -> None:
    engine, executor = engine_over(1)
    engine.add(0, request(PROMPT, max_tokens=5))
    collected = run(engine, steps=2)
    engine.rest.sleep(SleepLevel.WEIGHTS_KEPT)
    executor.no_memory_for = command
    with pytest.raises(FailedPrecondition, match="so the engine stays asleep: Not enough memory"):
        engine.rest.wake_up(PARTS)
    assert engine.load().status.asleep == (("kv_cache", "weights") if command is RestoreWeights else ("kv_cache",))
    assert not engine.has_work
    engine.rest.sleep(SleepLevel.WEIGHTS_KEPT)
    assert engine.load().status.asleep == ("kv_cache", "weights")
    executor.no_memory_for = None
    engine.rest.wake_up(PARTS)
    assert run(engine, collected).tokens[0, 0] == expected(PROMPT, 5)


def with_weights(prompt: list[int], count: int) -> list[int]:
    """What the fake model generates with the weights of the folder `/new`."""
    return expected_tokens(prompt, count, VOCABULARY, sampling_plan(temperature=0.0), "/new")


@pytest.mark.parametrize("in_flight", [1, 2])
def test_requests_go_on_with_other_weights_and_nothing_of_the_old_ones(in_flight: int) -> None:
    engine, executor = engine_over(in_flight, num_blocks=60, num_host_blocks=20, max_num_seqs=4)
    for key, prompt in enumerate(PROMPTS):
        engine.add(key, request(prompt, max_tokens=30))
    collected = run(engine, steps=20)
    engine.rest.replace_weights("/new", lambda: None)
    engine.check()
    assert executor.asked == [ReleaseMemory(True), RestoreWeights("/new"), RestoreCache()]
    assert engine.load().status == EngineStatus()
    run(engine, collected)
    old = []
    for key, prompt in enumerate(PROMPTS):
        found, wanted = collected.tokens[key, 0], expected(prompt, 30)
        old.append(next((count for count in range(30) if found[count] != wanted[count]), 30))
        assert found[old[-1] :] == with_weights(prompt + found[: old[-1]], 30 - old[-1])
    assert any(0 < count < 30 for count in old)
    engine.add(9, request(PROMPTS[5], max_tokens=5))
    assert run(engine, collected).tokens[9, 0] == with_weights(PROMPTS[5], 5)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_tokens_have_the_version_of_the_weights_that_computed_them(in_flight: int) -> None:
    engine, _ = engine_over(in_flight)
    engine.add(0, request(PROMPT, max_tokens=12))
    collected = run(engine, steps=5)
    engine.rest.replace_weights("/new", lambda: engine.name_weights("new"))
    run(engine, collected)
    versions = {True: list[int](), False: list[int]()}
    for delta in collected.deltas:
        versions[delta.weight_version == "new"] += delta.token_ids
    assert versions[False] == expected(PROMPT, 12)[: len(versions[False])] != []
    assert versions[True] == with_weights(PROMPT + versions[False], len(versions[True])) != []


def test_with_other_weights_it_is_as_awake_as_before() -> None:
    engine, _ = engine_over(1)
    engine.add(0, request(PROMPT, max_tokens=5))
    engine.rest.pause()
    engine.rest.replace_weights("/new", lambda: None)
    assert engine.load().status == EngineStatus(is_paused=True)
    engine.rest.sleep(SleepLevel.WEIGHTS_KEPT)
    engine.rest.replace_weights("/new", lambda: None)
    assert engine.load().status == EngineStatus(is_paused=True, sleep_level=1, asleep=("kv_cache",))
    engine.rest.sleep(SleepLevel.WEIGHTS_FORGOTTEN)
    engine.rest.wake_up(PARTS)
    assert run(engine).tokens[0, 0] == with_weights(PROMPT, 5)


def test_weights_that_cannot_be_loaded_leave_it_asleep() -> None:
    engine, executor = engine_over(1)
    engine.add(0, request(PROMPT, max_tokens=5))
    executor.no_memory_for = RestoreWeights
    replaced: list[None] = []
    with pytest.raises(FailedPrecondition, match=r"asleep, with none\. /wake_up loads the previous ones"):
        engine.rest.replace_weights("/new", lambda: replaced.append(None))
    assert not replaced
    assert engine.load().status == EngineStatus(is_paused=True, sleep_level=2, asleep=("kv_cache", "weights"))
    assert not engine.has_work
    executor.no_memory_for = None
    engine.rest.wake_up(PARTS)
    assert run(engine).tokens[0, 0] == expected(PROMPT, 5)


@pytest.mark.parametrize("level", [SleepLevel.WEIGHTS_KEPT, SleepLevel.WEIGHTS_FORGOTTEN])
def test_blocks_that_are_on_their_way_come_for_nobody(level: SleepLevel) -> None:
    remote = Remote(load=lambda key: Fare(6), blocks=filled(PROMPT), wait_seconds=1000)
    engine = make_worker(remote)
    engine.add(0, request(PROMPT, max_tokens=20))
    collected = run(engine, steps=2)
    engine.rest.sleep(level)
    assert engine.load().used_kv_blocks == 0
    engine.check()
    engine.rest.wake_up(PARTS)
    assert run(engine, collected).tokens[0, 0] == expected(PROMPT, 20)
