"""A worker that computes prompts for others ends requests once their blocks are saved, and another one continues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_svc.core.engine import Engine
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import ChoiceProgress
from quire.errors import PREFILLED, Internal
from tests.engine_svc.core.test_awaited_blocks import PROMPT, cached_tokens, make_worker
from tests.engine_svc.core.test_engine import VOCABULARY, expected, make_engine, request, run
from tests.support.fake_executor import FakeExecutor
from tests.support.remote_connector import Fare, Remote


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_another_worker_continues_with_the_blocks(in_flight: int, n: int) -> None:
    """The request generates on while its blocks are being saved, and no token is lost or repeated."""
    remote = Remote(save=lambda key: Fare(4), load=lambda key: Fare(2))
    first, second = make_worker(remote, in_flight), make_worker(remote, in_flight)
    first.add(0, replace(request(PROMPT, max_tokens=20, n=n, temperature=1.0, seed=5), hands_over=True))
    collected = run(first)
    last = collected.last[0]
    assert (last.finish_reason, last.error.reason if last.error else "") == (FinishReason.ERROR, PREFILLED)
    assert first.load().used_kv_blocks == 0
    begun = [collected.tokens.get((0, choice), []) for choice in range(n)]
    assert all(4 <= len(tokens) < 20 for tokens in begun)
    progress = tuple(ChoiceProgress(tokens) for tokens in begun)
    second.add(0, request(PROMPT, max_tokens=20, n=n, temperature=1.0, seed=5, progress=progress))
    continued = run(second)
    whole = make_worker(Remote())
    whole.add(0, request(PROMPT, max_tokens=20, n=n, temperature=1.0, seed=5))
    expected_outputs = run(whole).tokens
    for choice in range(n):
        assert begun[choice] + continued.tokens[0, choice] == expected_outputs[0, choice]
    assert cached_tokens(continued, 0) >= 40


def test_what_ends_before_is_not_handed_over() -> None:
    engine = make_worker(Remote(save=lambda key: Fare(30)))
    engine.add(0, replace(request(PROMPT, max_tokens=5), hands_over=True))
    engine.add(1, replace(request(PROMPT[:20], max_tokens=50), hands_over=True))
    engine.step()
    engine.abort(1)
    collected = run(engine)
    assert collected.tokens[0, 0] == expected(PROMPT, 5)
    assert [collected.last[key].finish_reason for key in (0, 1)] == [FinishReason.LENGTH, FinishReason.ABORT]


def test_blocks_that_storage_has_forgotten_are_not_waited_for() -> None:
    """They are cached here, so nobody will save them again."""
    remote = Remote()
    engine = make_worker(remote)
    engine.add(0, request(PROMPT, max_tokens=1))
    run(engine)
    remote.blocks.clear()
    engine.add(1, replace(request([*PROMPT, *range(100, 130)], max_tokens=100), hands_over=True))
    collected = run(engine, steps=30)
    assert collected.last[1].finish_reason is FinishReason.ERROR
    assert cached_tokens(collected, 1) == 40


def test_storage_that_takes_nothing_is_not_waited_for_long() -> None:
    now = iter(range(10**6))
    engine = make_worker(Remote(save=lambda key: Fare(None)), clock=lambda: next(now) / 10)
    engine.add(0, replace(request(PROMPT, max_tokens=150), hands_over=True))
    collected = run(engine, steps=100)
    assert collected.last[0].finish_reason is FinishReason.ERROR
    assert 5 < len(collected.tokens[0, 0]) < 60


def test_without_other_workers_prompts_are_handed_over_at_once() -> None:
    """A worker whose blocks nobody can load: there is nothing to wait for."""
    engine = make_engine(FakeExecutor(VOCABULARY, 4, verify=True))
    engine.add(0, replace(request(PROMPT, max_tokens=20), hands_over=True))
    collected = run(engine)
    assert len(collected.tokens[0, 0]) == 1
    assert collected.last[0].finish_reason is FinishReason.ERROR


def finals(engine: Engine, steps: int = 200) -> dict[int, list[FinishReason | None]]:
    """For each step that reports anything, the reasons for which requests ended in it."""
    found = {}
    for number in range(steps):
        if engine.has_work and (deltas := engine.step()):
            found[number] = [delta.finish_reason for delta in deltas if delta.is_final]
    return found


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_what_another_deployment_continues_ends_once_its_blocks_are_saved(in_flight: int, n: int) -> None:
    """With its only token, as others end meanwhile; the engine has nothing to compute by then."""
    remote = Remote(save=lambda key: Fare(30))
    engine = make_worker(remote, in_flight)
    engine.add(0, replace(request(PROMPT, max_tokens=1, n=n), remote_decode=True))
    engine.add(1, request([7, *PROMPT], max_tokens=5))
    (first, second) = [step for step, reasons in finals(engine).items() if reasons]
    assert first < 10
    assert second > 25
    assert len(remote.blocks) == 21
    assert not engine.has_work


def test_blocks_that_are_not_saved_are_not_waited_for_long() -> None:
    now = iter(range(10**6))
    engine = make_worker(Remote(save=lambda key: Fare(None)), clock=lambda: next(now) / 10)
    engine.add(0, replace(request(PROMPT, max_tokens=1), remote_decode=True))
    (step,) = [step for step, reasons in finals(engine).items() if reasons == [FinishReason.LENGTH]]
    assert 10 < step < 60


def test_who_aborts_or_fails_does_not_wait_for_blocks() -> None:
    engine = make_worker(Remote(save=lambda key: Fare(None)))
    engine.add(0, replace(request(PROMPT, max_tokens=50), remote_decode=True))
    engine.add(1, replace(request(PROMPT, max_tokens=1), remote_decode=True))
    for _ in range(4):
        engine.step()
    engine.abort(0)
    assert [(delta.key, delta.finish_reason) for delta in engine.step()] == [(0, FinishReason.ABORT)]
    assert engine.is_waiting
    (last,) = engine.give_up(Internal("dead"))
    assert (last.key, last.finish_reason) == (1, FinishReason.LENGTH)
