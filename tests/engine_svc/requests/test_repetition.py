"""The repetition detector against its definition, however an output begins, and in an engine."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.repetition import RepetitionDetector
from quire.sampling import RepetitionDetection
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tiny_models import make_model


def repeats(token_ids: list[int], rules: RepetitionDetection) -> bool:
    for size in range(max(1, rules.min_pattern_size), rules.max_pattern_size + 1):
        end = token_ids[-size:] * rules.min_count
        if len(token_ids) >= len(end) and token_ids[-len(end) :] == end:
            return True
    return False


@given(
    token_ids=st.lists(st.integers(0, 2), max_size=80), cut=st.integers(0, 80),
    largest=st.integers(1, 6), smallest=st.integers(0, 6), count=st.integers(2, 5),
)  # fmt: skip
@example(token_ids=[0] * 80, cut=0, largest=1, smallest=0, count=5)
@example(token_ids=[0, 1, 2] * 26, cut=7, largest=3, smallest=3, count=4)
def test_as_defined(token_ids: list[int], cut: int, largest: int, smallest: int, count: int) -> None:
    rules = RepetitionDetection(largest, min(smallest, largest), count)
    detector = RepetitionDetector(rules, token_ids[:cut])
    for end in range(cut, len(token_ids)):
        assert detector.advance(token_ids[end]) == repeats(token_ids[: end + 1], rules)


def test_an_output_that_repeats_itself_ends(tmp_path: Path) -> None:
    """Holds alone, beside others, and for each choice of a request; repetitions in the prompt do not count."""
    rules = RepetitionDetection(max_pattern_size=4, min_count=3)
    prompt = [5] * 30
    with running_engine(make_model(tmp_path, "llama-untied")) as engine:
        one = replace(GREEDY, allowed_token_ids=(5,), repetition_detection=rules)
        [[output]] = run(engine, [prompt], one)
        assert (output.token_ids, output.finish_reason) == ([5] * 3, FinishReason.REPETITION)
        [[output]] = run(engine, [prompt], replace(one, min_tokens=7))
        assert (len(output.token_ids), output.finish_reason) == (7, FinishReason.REPETITION)
        [[output]] = run(engine, [prompt], replace(one, max_tokens=3))
        assert output.finish_reason is FinishReason.LENGTH
        [[output]] = run(engine, [prompt], replace(one, repetition_detection=RepetitionDetection()))
        assert output.finish_reason is FinishReason.LENGTH
        few = replace(GREEDY, temperature=1.0, seed=1, n=3, allowed_token_ids=(5, 6), repetition_detection=rules)
        for choices in run(engine, random_prompts(9, 20), few):
            for output in choices:
                ends = [repeats(output.token_ids[:end], rules) for end in range(1, len(output.token_ids) + 1)]
                assert ends.index(True) == len(ends) - 1
                assert output.finish_reason is FinishReason.REPETITION
