"""The automaton against the reading that all services share, and budgets in an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.thinking import make_automaton
from quire.reasoning import ReasoningMarks, ReasoningTracker
from quire.sampling import SamplingParameters
from tests.support.plans import sampling_plan
from tests.support.run_engine import random_prompts, run, running_engine
from tests.support.tiny_models import make_model

BLANK = 9
# Runs over a small alphabet, so that they overlap with themselves and with each other.
RUNS = st.lists(st.integers(0, 2), max_size=4).map(tuple)
MARKS = st.builds(
    ReasoningMarks, RUNS, RUNS.filter(bool), st.booleans(), st.booleans(), st.sampled_from([(), (BLANK,)])
).filter(lambda marks: bool(marks.start_token_ids) or not marks.is_optional)


@settings(max_examples=300)
@given(marks=MARKS, token_ids=st.lists(st.sampled_from([0, 1, 2, 5, BLANK]), max_size=20))
def test_the_automaton_reads_as_the_tracker(marks: ReasoningMarks, token_ids: list[int]) -> None:
    automaton = make_automaton(marks)
    for end in range(len(token_ids) + 1):
        tracker = ReasoningTracker(marks)
        tracker.advance(token_ids[:end])
        state, count = automaton.follow(token_ids[:end])
        assert (automaton.marking[state] >= 0) == tracker.thinks
        if tracker.thinks:
            assert count == tracker.num_tokens


def test_long_marks_make_small_automata() -> None:
    marks = ReasoningMarks(tuple(range(16)), tuple(range(20, 36)), blank_token_ids=tuple(range(40, 56)))
    automaton = make_automaton(marks)
    assert len(automaton.following) == 33
    assert len(automaton.token_ids) == 48


START, END = (11, 12), (13, 14, 15)
PLAIN = SamplingParameters(temperature=1.0, seed=3, max_tokens=40, n=2, bad_words=((11,), (13,)))
PROMPTS = random_prompts(9, 20)


@pytest.mark.parametrize("budget", [0, 1, 7, 39, 40, 1000])
@pytest.mark.parametrize("marks", [ReasoningMarks(START, END), ReasoningMarks((), END, is_open=True)])
def test_the_end_comes_when_the_budget_is_used_up(tmp_path: Path, budget: int, marks: ReasoningMarks) -> None:
    """Neither mark would come by itself, and the one that has to come does even where it is forbidden."""
    with running_engine(make_model(tmp_path, "llama-untied")) as engine:
        free = run(engine, PROMPTS, PLAIN)
        bounded = run(engine, PROMPTS, replace(PLAIN, thinking_token_budget=budget, reasoning=marks))
    for before, after in zip(free, bounded, strict=True):
        for one, other in zip(before, after, strict=True):
            assert other.token_ids[:budget] == one.token_ids[:budget]
            assert other.token_ids[budget : budget + 3] == list(END[: max(0, 40 - budget)])
            assert len(other.token_ids) == 40
            if budget < 30:
                assert len(set(other.token_ids[budget + 3 :])) > 3


def test_budgets_by_the_tokens_that_come() -> None:
    """Samplers without a model: which token is certain after each of an output's."""
    cases: list[tuple[ReasoningMarks, list[int], dict[int, int]]] = [
        # A start mark does not count, and one that has begun is made whole.
        (ReasoningMarks(START, END), [11, 12, 5, 5, 13, 14, 15, 5, 5], {4: 13, 5: 14, 6: 15}),
        (ReasoningMarks(START, END), [5, 5, 5], {2: 13, 3: 13}),
        (ReasoningMarks(START, END, blank_token_ids=(BLANK,)), [BLANK, 11, 12, 5, 5], {2: 12, 5: 13}),
        # Who need not think does so only where the output begins with the mark.
        (ReasoningMarks(START, END, is_optional=True), [5, 5, 5, 5], {}),
        (ReasoningMarks(START, END, is_optional=True), [11, 5, 5, 5], {}),
        (
            ReasoningMarks(START, END, is_optional=True, blank_token_ids=(BLANK,)),
            [BLANK, 11, 12, 5, 5, 5], {5: 13, 6: 13},
        ),
        # An end that has begun goes on; one that came by itself is left alone.
        (ReasoningMarks((), END), [5, 13, 5, 13, 14], {2: 14, 3: 13, 4: 14, 5: 15}),
        (ReasoningMarks((), (13,)), [5, 13, 5, 5, 5], {}),
    ]  # fmt: skip
    sampler = Sampler(1, 20, torch.device("cpu"))
    for marks, output, certain in cases:
        plan = sampling_plan(temperature=2.0, thinking_token_budget=2, reasoning=marks, allowed_token_ids=(1, 2))
        for begun in range(len(output) + 1):
            sampler.add(0, plan, [0, *output[:begun]], 1)
            for known in range(begun, len(output) + 1):
                token_id = int(sampler.sample(torch.zeros(1, 20), SampledRows([0], [known + 1])).token_ids[0])
                assert (token_id if token_id > 2 else None) == certain.get(known), (marks, output, known)
                sampler.add(0, plan, [0, *output[: known + 1]], 1)
