"""The engine of pooled models: the order of requests, and that each one ends exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_svc.core.pooling_engine import PoolingEngine
from engine_svc.executor.base import ExecutorDead
from engine_svc.pooling_plan import PooledOutput, PoolingPlan, PoolingResult
from engine_svc.requests import pooling
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.pooling import PoolingFacts, PoolingInput, PoolingRequest
from engine_svc.upkeep import ReleaseMemory, RestoreCache, RestoreWeights, Upkeep
from quire.errors import Conflict, DeadlineExceeded, Internal, Overloaded, Unavailable
from quire.options.scheduler import SchedulerOptions
from quire.sleep import KV_CACHE, WEIGHTS, SleepLevel

FACTS = PoolingFacts(tasks=("embed", "token_embed"), embedding_size=4, token_embedding_size=4)
Broken = Callable[[PoolingPlan], None]


class FakeSteps:
    """Records its plans; each output is the sequence's first token."""

    def __init__(self, breaks: Broken | None = None) -> None:
        self.plans: list[PoolingPlan] = []
        self.breaks = breaks
        self.commands: list[Upkeep] = []

    def run(self, plan: PoolingPlan) -> PoolingResult:
        self.plans.append(plan)
        if self.breaks is not None:
            self.breaks(plan)
        outputs = [_output(each.token_ids) for each in plan.sequences]
        return PoolingResult(outputs, 1.0, 2.0)

    def upkeep(self, command: Upkeep) -> list[str]:
        self.commands.append(command)
        return []

    def reset_encoder_cache(self) -> None:
        """Does nothing."""

    def wake_by(self, wake: Callable[[], None]) -> None: ...

    def check_alive(self, asks: bool = False) -> None: ...

    def close(self) -> None:
        """Does nothing."""

    @property
    def firsts(self) -> list[list[int]]:
        """For each step, the first token of each sequence."""
        return [[each.token_ids[0] for each in plan.sequences] for plan in self.plans]


def _output(token_ids: list[int]) -> PooledOutput | str:
    if token_ids[0] == 666:
        return "its values overflowed"
    return PooledOutput(bytes([token_ids[0]]), (1,), len(token_ids))


def request(*firsts: int, length: int = 1, **changes: object) -> PoolingRequest:
    inputs = tuple(PoolingInput([first] * length) for first in firsts)
    return PoolingRequest("r", inputs, **changes)  # type: ignore[arg-type]


def make_engine(
    steps: FakeSteps, budget: int = 100, clock: Callable[[], float] = lambda: 0.0, **options: object
) -> PoolingEngine:
    return PoolingEngine(steps, FACTS, SchedulerOptions(**options), budget, clock)  # type: ignore[arg-type]


def run_all(engine: PoolingEngine) -> dict[int, SequenceDelta]:
    """Runs steps until nothing is left; returns each request's only delta."""
    found: dict[int, SequenceDelta] = {}
    while engine.has_work:
        for delta in engine.step():
            assert delta.key not in found
            assert delta.is_final
            found[delta.key] = delta
    assert engine.load().waiting_prefill_tokens == engine.load().waiting_requests == 0
    return found


def test_outputs_are_in_the_inputs_order() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, budget=2)
    engine.add(1, request(5, 6, 7))
    (delta,) = run_all(engine).values()
    assert [output.data for output in delta.pooled] == [b"\5", b"\6", b"\7"]
    assert delta.finish_reason is FinishReason.STOP
    assert delta.usage is not None
    assert delta.usage.prompt_tokens == 3
    assert steps.firsts == [[5, 6], [7]]


def test_a_step_has_its_budget_and_one_sequence_at_least() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, budget=10)
    engine.add(1, request(1, 2, length=30))
    engine.add(2, request(3, 4, 5, length=4))
    run_all(engine)
    assert [sum(len(each.token_ids) for each in plan.sequences) for plan in steps.plans] == [30, 4, 30, 8]


def test_a_step_has_no_more_sequences_than_options_allow() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, max_num_seqs=2)
    engine.add(1, request(1, 2, 3, 4, 5))
    run_all(engine)
    assert [len(plan.sequences) for plan in steps.plans] == [2, 2, 1]


def test_a_request_of_many_inputs_does_not_hold_up_others() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, budget=2)
    engine.add(1, request(*[1] * 100))
    engine.step()
    engine.add(2, request(2))
    engine.add(3, request(3, 3))
    engine.step()
    assert 2 in steps.firsts[1]
    engine.step()
    engine.step()
    assert sum(each.count(3) for each in steps.firsts) == 2


def test_priorities() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, budget=1, scheduling_policy="priority")
    engine.add(1, request(1, priority=1))
    engine.add(2, request(2, priority=0))
    run_all(engine)
    assert steps.firsts == [[2], [1]]


def test_an_aborted_request_frees_its_place() -> None:
    steps = FakeSteps()
    engine = make_engine(steps, budget=1)
    engine.add(1, request(1, 1, 1))
    engine.add(2, request(2))
    engine.step()
    engine.abort(1)
    engine.abort(7)
    found = run_all(engine)
    assert found[1].finish_reason is FinishReason.ABORT
    assert found[2].finish_reason is FinishReason.STOP
    assert steps.firsts == [[1], [2]]


def test_a_deadline_ends_a_request() -> None:
    now = [0.0]
    engine = make_engine(FakeSteps(), budget=1, clock=lambda: now[0])
    engine.add(1, request(1, 1, 1, timeout_seconds=5.0))
    engine.step()
    now[0] = 6.0
    (delta,) = run_all(engine).values()
    assert isinstance(delta.error, DeadlineExceeded)
    assert "5 s" in delta.error.message


def test_a_sequence_that_fails_fails_its_request_alone() -> None:
    engine = make_engine(FakeSteps())
    engine.add(1, request(1, 666, 2))
    engine.add(2, request(3))
    found = run_all(engine)
    error = found[1].error
    assert isinstance(error, Internal)
    assert error.message == "inputs[1] failed: its values overflowed."
    assert found[2].pooled


def test_three_failed_steps_are_the_end() -> None:
    def broken(plan: PoolingPlan) -> None:
        raise RuntimeError("no device")

    steps = FakeSteps(broken)
    engine = make_engine(steps, budget=1)
    for key in (1, 2, 3):
        engine.add(key, request(key))
    for key in (1, 2):
        (delta,) = engine.step()
        assert delta.key == key
        assert isinstance(delta.error, Internal)
    with pytest.raises(ExecutorDead):
        engine.step()
    assert [delta.key for delta in engine.give_up(Unavailable("gone"))] == [3]


def test_requests_hold_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_svc.core.pooling_engine.MAX_LIVE_BYTES", 1000)
    engine = make_engine(FakeSteps())
    engine.add(1, request(1, length=60))
    engine.add(2, request(2, length=80))
    found = run_all(engine)
    assert isinstance(found[2].error, Overloaded)
    assert found[1].pooled
    engine.add(3, request(2, length=80))
    assert run_all(engine)[3].pooled


def test_load_and_counters() -> None:
    engine = make_engine(FakeSteps(), budget=10)
    engine.add(1, request(1, 2, 3, length=4))
    load = engine.load()
    assert (load.waiting_requests, load.waiting_prefill_tokens, load.busy) == (1, 12, True)
    engine.step()
    assert (engine.load().waiting_requests, engine.load().waiting_prefill_tokens) == (0, 4)
    run_all(engine)
    load = engine.load()
    assert (load.step, load.busy, load.counters.prompt_tokens) == (2, False, 12)
    assert sum(load.counters.iteration_tokens.counts) == 2


def test_what_requests_take_is_told_before_they_run() -> None:
    each = request(1, 2, length=3)
    assert FACTS.output_bytes(each) == 2 * 4 * 4
    assert FACTS.output_bytes(request(1, 2, length=3, task="token_embed")) == 6 * 4 * 4
    assert pooling.MAX_OUTPUT_BYTES < 16 * 2**20


def test_a_paused_engine_stands_still() -> None:
    engine = make_engine(FakeSteps())
    engine.rest.pause()
    engine.add(1, request(1, timeout_seconds=None))
    assert not engine.has_work
    assert engine.load().status.is_paused
    engine.add(2, request(2, timeout_seconds=0.0))
    (delta,) = engine.step()
    assert delta.key == 2
    engine.rest.wake_up(())
    assert run_all(engine)[1].pooled


def test_one_that_sleeps_gives_its_memory_back_and_gets_on_with_what_waited() -> None:
    steps = FakeSteps()
    engine = make_engine(steps)
    engine.rest.sleep(SleepLevel.WEIGHTS_FORGOTTEN)
    engine.add(1, request(1, timeout_seconds=None))
    assert not engine.has_work
    assert engine.load().status.asleep == (KV_CACHE, WEIGHTS)
    with pytest.raises(Conflict, match="not in memory"):
        engine.rest.resume()
    engine.rest.wake_up((WEIGHTS,))
    assert engine.load().status.asleep == (KV_CACHE,)
    assert not engine.has_work
    engine.rest.wake_up((WEIGHTS, KV_CACHE))
    assert run_all(engine)[1].pooled
    assert steps.commands == [ReleaseMemory(True), RestoreWeights(), RestoreCache()]


def test_all_requests_are_aborted_at_once() -> None:
    engine = make_engine(FakeSteps())
    engine.add(1, request(1))
    engine.add(2, request(2))
    engine.abort_all()
    assert [delta.finish_reason for delta in engine.step()] == [FinishReason.ABORT] * 2
