"""Sequences that wait for blocks from elsewhere hold up no others, and tokens do not depend on what arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine_svc.core.engine import Engine
from engine_svc.core.loop import EngineLoop
from engine_svc.plan import StepPlan
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from tests.engine_svc.core.test_engine import PROMPTS, VOCABULARY, Collected, expected, make_engine, request, run
from tests.support.fake_executor import FakeExecutor
from tests.support.remote_connector import Fare, Remote, RemoteConnector, list_store

BLOCK = 4
PROMPT = list(range(41))  # ten blocks, and the token to sample from
SHORT = [500, 501]
NEVER = Fare(None)


def make_worker(
    remote: Remote, in_flight: int = 1, on_step: Callable[[StepPlan], None] | None = None, **changes: Any
) -> Engine:
    """Creates an engine whose blocks are saved to `remote` and loaded from it."""
    executor = FakeExecutor(
        VOCABULARY, BLOCK, verify=True, max_in_flight=in_flight, on_step=on_step, max_model_len=200,
        make_store=list_store(remote, [(9, 9)] * BLOCK),
    )  # fmt: skip
    return make_engine(executor, connector=RemoteConnector(remote), **changes)


def filled(*prompts: list[int]) -> dict[bytes, Any]:
    """Returns the blocks of prompts that another worker has computed."""
    remote = Remote()
    engine = make_worker(remote)
    for key, prompt in enumerate(prompts):
        engine.add(key, request(prompt, max_tokens=1))
    run(engine)
    assert engine.load().used_kv_blocks == 0, "a save still holds its blocks"
    return remote.blocks


def cached_tokens(collected: Collected, key: int) -> int:
    usage = collected.last[key].usage
    assert usage is not None
    return usage.cached_prompt_tokens


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize(
    ("fare", "cached"),
    [(Fare(0), 40), (Fare(7), 40), (Fare(3, most=6), 24), (Fare(3, most=0), 0), (NEVER, 0), (Fare(None, lingers=9), 0)],
)
def test_tokens_are_those_without_whatever_comes(fare: Fare, cached: int, in_flight: int) -> None:
    """Blocks arrive late, in part, with errors, or never: whatever does not arrive is computed."""
    steps: list[StepPlan] = []
    remote = Remote(load=lambda key: fare, blocks=filled(PROMPT), wait_seconds=12)
    engine = make_worker(remote, in_flight, steps.append, clock=lambda: float(len(steps)))
    engine.add(0, request(PROMPT, max_tokens=20))
    collected = run(engine)
    assert collected.tokens[0, 0] == expected(PROMPT, 20)
    assert cached_tokens(collected, 0) == cached
    counters = engine.load().counters
    come = cached if cached == 40 else 0  # otherwise it began anew, and found on the device what had come
    assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == (41, cached - come)
    assert (counters.external_cache_queries, counters.external_cache_hits) == (41 - cached + come, come)
    assert counters.computed_tokens == 41 - cached + 19
    assert sum(counters.model_execute_milliseconds.counts) == sum(bool(plan.scheduled) for plan in steps)
    assert engine.load().used_kv_blocks == 0


def test_who_waits_holds_nobody_up() -> None:
    """Neither queued nor running requests are held up; the waiting sequence takes no slot."""
    remote = Remote(load=lambda key: Fare(30), blocks=filled(PROMPT))
    engine = make_worker(remote, max_num_seqs=1)
    for key, prompt in enumerate((PROMPT, SHORT, [*SHORT, 7])):
        engine.add(key, request(prompt, max_tokens=10))
    collected = run(engine, steps=20)
    assert collected.last.keys() == {1, 2}
    load = engine.load()
    assert (load.running_sequences, load.waiting_requests, load.busy) == (0, 1, True)
    run(engine, collected)
    assert [collected.tokens[key, 0] for key in (0, 1)] == [expected(PROMPT, 10), expected(SHORT, 10)]
    assert cached_tokens(collected, 0) == 40


def test_blocks_of_several_come_at_the_same_time_and_what_is_on_the_device_is_not_asked_for() -> None:
    prompts = [[*PROMPT, *range(start, start + 12)] for start in (100, 200, 300)]
    remote = Remote(load=lambda key: Fare(4), blocks=filled(*prompts))
    engine = make_worker(remote, num_blocks=100)
    engine.add(9, request(PROMPT, max_tokens=1))
    run(engine)
    for key, prompt in enumerate(prompts):
        engine.add(key, request(prompt, max_tokens=5))
    collected = run(engine, steps=1)
    assert engine.load().used_kv_blocks == 10 + 3 * 3
    run(engine, collected)
    for key, prompt in enumerate(prompts):
        assert collected.tokens[key, 0] == expected(prompt, 5)
        assert cached_tokens(collected, key) == 52


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("lingers", [0, 3])
def test_cancelled_while_it_waits(steps: int, lingers: int, in_flight: int) -> None:
    """Its blocks are not reused until the transfer has ended, and all are free afterwards."""
    remote = Remote(load=lambda key: Fare(4, lingers=lingers), blocks=filled(PROMPT))
    engine = make_worker(remote, in_flight, num_blocks=20, max_model_len=60)
    engine.add(0, request(PROMPT, max_tokens=5))
    collected = run(engine, steps=steps)
    engine.abort(0)
    engine.check()
    other = list(range(600, 640))
    engine.add(1, request(other, max_tokens=10))
    run(engine, collected)
    assert collected.last[0].finish_reason is FinishReason.ABORT
    assert collected.tokens[1, 0] == expected(other, 10)
    assert (engine.load().used_kv_blocks, engine.load().busy) == (0, False)


def test_a_stop_string_and_a_deadline_of_the_request_end_who_waits() -> None:
    now = [0.0]
    remote = Remote(load=lambda key: NEVER, blocks=filled(PROMPT))
    engine = make_worker(remote, clock=lambda: now[0])
    engine.add(0, request(PROMPT, timeout_seconds=5.0))
    engine.add(1, request(PROMPT))
    collected = run(engine, steps=3)
    engine.stop(1, 0, 0)
    now[0] = 6.0
    run(engine, collected)
    assert [collected.last[key].finish_reason for key in (0, 1)] == [FinishReason.ERROR, FinishReason.STOP]
    assert engine.load().used_kv_blocks == 0


def test_choices_share_what_has_come() -> None:
    steps: list[StepPlan] = []
    remote = Remote(load=lambda key: Fare(3), blocks=filled(PROMPT))
    engine = make_worker(remote, on_step=steps.append)
    engine.add(0, request(PROMPT, n=3, max_tokens=4))
    collected = run(engine)
    assert [collected.tokens[0, choice] for choice in range(3)] == [expected(PROMPT, 4)] * 3
    assert sum(plan.num_tokens for plan in steps) == 3 * (1 + 3)


def test_no_more_wait_than_may_run_and_the_others_compute() -> None:
    prompts = [list(range(start, start + 9)) for start in range(0, 100, 10)]
    remote = Remote(load=lambda key: NEVER, blocks=filled(*prompts), wait_seconds=50)
    steps: list[StepPlan] = []
    engine = make_worker(remote, on_step=steps.append, clock=lambda: float(len(steps)), max_num_seqs=3)
    for key, prompt in enumerate(prompts):
        engine.add(key, request(prompt, max_tokens=3))
    collected = run(engine, steps=20)
    assert set(range(10)) - collected.last.keys() == {0, 1, 2}
    run(engine, collected)
    assert all(collected.tokens[key, 0] == expected(prompt, 3) for key, prompt in enumerate(prompts))


@pytest.mark.parametrize("lingers", [0, 5])
def test_where_blocks_are_short_who_waits_gives_way_to_those_before_it(lingers: int) -> None:
    """The earlier request is preempted at most until the transfer lets go of the blocks, not until the wait is over."""
    remote = Remote(load=lambda key: Fare(None, lingers=lingers), blocks=filled(PROMPT))
    steps: list[StepPlan] = []
    engine = make_worker(remote, on_step=steps.append, num_blocks=20, max_model_len=80)
    first = list(range(700, 730))
    engine.add(0, request(first, max_tokens=40))
    engine.add(1, request(PROMPT, max_tokens=5))
    collected = run(engine)
    assert [collected.tokens[0, 0], collected.tokens[1, 0]] == [expected(first, 40), expected(PROMPT, 5)]
    assert list(collected.last) == [0, 1]
    assert engine.load().counters.preemptions == 1


@pytest.mark.parametrize("in_flight", [1, 2])
def test_after_a_failed_step_who_waits_computes(in_flight: int) -> None:
    """Blocks saved before the failure, or in transfer, may be wrong and are not used."""

    def fail(plan: StepPlan) -> None:
        if plan.step == 4:
            raise RuntimeError("device-side assert")

    remote = Remote(load=lambda key: Fare(8), blocks=filled(PROMPT))
    engine = make_worker(remote, in_flight, fail)
    engine.add(0, request(PROMPT, max_tokens=5))
    engine.add(1, request(SHORT, max_tokens=30))
    collected = run(engine)
    assert collected.last[1].finish_reason is FinishReason.ERROR
    assert collected.tokens[0, 0] == expected(PROMPT, 5)
    assert cached_tokens(collected, 0) == 0
    assert engine.load().used_kv_blocks == 0


def test_a_worker_takes_over_what_another_saves() -> None:
    """One worker computes prompts and another one continues, as with separate prefill workers."""
    remote = Remote()
    first, second = make_worker(remote), make_worker(remote)
    for key, prompt in enumerate(PROMPTS):
        first.add(key, request(prompt, max_tokens=1))
    run(first)
    for key, prompt in enumerate(PROMPTS):
        second.add(key, request(prompt, max_tokens=40))
    collected = run(second)
    for key, prompt in enumerate(PROMPTS):
        assert collected.tokens[key, 0] == expected(prompt, 40)
        assert cached_tokens(collected, key) == (len(prompt) - 1) // BLOCK * BLOCK


class _Sink:
    def __init__(self) -> None:
        self.done = asyncio.Event()

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        if any(delta.is_final for delta in deltas):
            self.done.set()


async def test_the_loop_does_not_spin_while_all_wait() -> None:
    """The loop polls for blocks at intervals, and at once when there is other work."""
    steps: list[StepPlan] = []
    remote = Remote(load=lambda key: NEVER, blocks=filled(PROMPT))
    loop = EngineLoop(lambda: make_worker(remote, on_step=steps.append), 100)
    await loop.start()
    waits, other = _Sink(), _Sink()
    key = loop.submit(request(PROMPT, max_tokens=3), waits)
    while not steps:
        await asyncio.sleep(0.01)
    before, start = len(steps), time.monotonic()
    await asyncio.sleep(0.2)
    assert len(steps) - before <= 2000 * (time.monotonic() - start), "a step follows the other without a pause"
    loop.submit(request(SHORT, max_tokens=3), other)
    await asyncio.wait_for(other.done.wait(), 30)
    loop.abort(key)
    await asyncio.wait_for(waits.done.wait(), 30)
    await loop.stop()
