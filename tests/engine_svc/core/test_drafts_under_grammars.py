"""Outputs that follow grammars, with drafts of any quality: the same tokens, endings and refusals as without drafts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.plan import CacheSize, StepPlan
from engine_svc.requests.request import GenerationRequest
from engine_svc.structured.grammars import Grammars
from quire.reasoning import ReasoningMarks
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint, ConstraintRequest, Form
from quire.structured.guidance import GuidanceMatcher
from quire.structured.registry import make_backend
from tests.engine_svc.core.test_engine import Collected
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor
from tests.support.grammars import EOS, PERSON, VOCABULARY_SIZE, following, make_grammars, matching, spell, vocabulary
from tests.support.replaying_drafter import ReplayingDrafter

SECONDS = 60.0
CLOSE = 9
THINKING = ReasoningMarks(end_token_ids=(CLOSE,), is_open=True)
BACKENDS = ("guidance", "xgrammar", "outlines")


def by(backend: str, pattern: str) -> Constraint:
    grammar = make_backend(backend, vocabulary()).compile(ConstraintRequest(Form.REGEX, pattern))
    return Constraint.of(backend, grammar)


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = make_grammars()
    yield made
    made.close()


def run(engine: Engine, requests: list[GenerationRequest]) -> Collected:
    collected, until = Collected(), time.monotonic() + SECONDS
    for key, request in enumerate(requests):
        engine.add(key, request)
    while len(collected.last) < len(requests) or engine.has_work:
        assert time.monotonic() < until
        collected.take(engine.step())
    engine.check()
    return collected


def engine_of(
    grammars: Grammars, in_flight: int = 1, drafter: ReplayingDrafter | None = None, plans: list[StepPlan] | None = None
) -> Engine:
    on_step = None if plans is None else plans.append
    executor = FakeExecutor(VOCABULARY_SIZE, 4, verify=True, max_in_flight=in_flight, on_step=on_step)
    executor.allocate(CacheSize(400))
    facts = EngineFacts(
        num_blocks=400, block_size=4, max_model_len=240, max_num_batched_tokens=80, eos_token_ids=frozenset([EOS])
    )
    return Engine(executor, engine_options(max_num_seqs=16), facts, drafter=drafter, grammars=grammars)


def requests() -> list[GenerationRequest]:
    constraints = [
        following(PERSON), matching("(yes|no)+"), matching("[ab]{7}"), matching(""), None,
        *(by(backend, pattern) for backend in BACKENDS for pattern in ("[ab]{1,9}(cd|ef)?", "[0-9]{12}", "(abc)+")),
    ]  # fmt: skip
    fields: list[dict[str, Any]] = [
        {}, {"ignore_eos": True, "max_tokens": 20}, {"reasoning": THINKING, "max_tokens": 60},
        {"min_tokens": 5, "n": 2}, {"stop_token_ids": tuple(spell("b")), "logprobs": 0},
    ]  # fmt: skip
    return [
        GenerationRequest(
            f"r{one}-{other}", spell("Give me one"),
            SamplingParameters(**{"seed": 5 * one + other, "max_tokens": 40} | more), constraint=constraint,
        )
        for one, constraint in enumerate(constraints) for other, more in enumerate(fields)
    ]  # fmt: skip


def told(found: Collected) -> Any:
    """Returns each choice's tokens and finish reason, and each failed request's error message."""
    return found.tokens, found.reasons, {key: delta.error and delta.error.message for key, delta in found.last.items()}


@pytest.mark.parametrize(("in_flight", "right"), [(1, 0.6), (2, 1.0)])
def test_tokens_are_those_without_drafts(grammars: Grammars, in_flight: int, right: float) -> None:
    asked = requests()
    expected = run(engine_of(grammars), asked)
    outputs = [
        [expected.tokens[key, choice] for choice in range(request.sampling.n)] for key, request in enumerate(asked)
    ]
    plans: list[StepPlan] = []
    drafter = ReplayingDrafter(VOCABULARY_SIZE, right=right)
    drafter.know(asked, outputs)
    found = run(engine_of(grammars, in_flight, drafter, plans), asked)
    assert told(found) == told(expected)
    verified = sum(len(scheduled.draft_token_ids) for plan in plans for scheduled in plan.scheduled)
    assert verified > 300
    for delta in found.deltas:
        assert delta.logprobs is None or [each.token_ids[0] for each in delta.logprobs] == delta.token_ids


def test_a_mask_is_filled_for_each_position_that_is_sampled_and_for_no_other(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sampled position gets one mask, and positions after a draft that the grammar rejects get none."""
    filled = 0
    fill = GuidanceMatcher.fill

    def count(self: GuidanceMatcher, row: npt.NDArray[np.int32]) -> None:
        nonlocal filled
        filled += 1
        fill(self, row)

    asked = [
        GenerationRequest(f"r{key}", spell("Count"), SamplingParameters(seed=key, max_tokens=30), constraint=constraint)
        for key, constraint in enumerate([matching("[0-9]{40}"), matching("(ab|cd){30}"), None])
    ]
    expected = run(engine_of(grammars), asked)
    plans: list[StepPlan] = []
    drafter = ReplayingDrafter(VOCABULARY_SIZE, right=0.5)
    drafter.know(asked, [[expected.tokens[key, 0]] for key in range(len(asked))])
    engine = engine_of(grammars, drafter=drafter, plans=plans)
    monkeypatch.setattr(GuidanceMatcher, "fill", count)
    assert told(run(engine, asked)) == told(expected)
    free = {new.slot for plan in plans for new in plan.new_sequences if not new.sampling.follows_grammar}
    scheduled = [each for plan in plans for each in plan.scheduled if each.slot not in free]
    drafts = sum(len(each.draft_token_ids) for each in scheduled)
    assert drafts > 10
    assert filled == sum(each.num_sampled_positions for each in scheduled)
