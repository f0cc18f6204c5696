"""The check of a whole stack: a small part of it runs for real, and its report names whatever is wrong."""

from __future__ import annotations

import pytest

from benchmarks import at_work
from benchmarks.at_work import Run, measure, runs, scale_of
from benchmarks.at_work_chat import whole_and_streamed
from benchmarks.at_work_load import cancelled_streams, preempted_streams
from benchmarks.at_work_stack import Answer, Stack, Unexpected, compared, complete, expect


async def broken(stack: Stack) -> str:
    expect(False, "one | two\nthree")
    return "never"


@pytest.mark.slow
def test_a_stack_is_tried_and_one_failure_leaves_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    few = "--num-gpu-blocks-override 32 --max-model-len 512"
    trials = (whole_and_streamed, broken, preempted_streams, cancelled_streams)
    outcomes = measure([Run("tiny-llama", few, trials)], "cpu", 200)
    assert [(outcome.tried, outcome.is_good) for outcome in outcomes] == [
        ("start", True), ("whole and streamed", True), ("broken", False), ("preempted streams", True),
        ("cancelled streams", True), ("stopped", True),
    ], outcomes  # fmt: skip
    printed = capsys.readouterr().out
    assert f"| tiny-llama | {few} | broken | FAILED: one \\| two three |" in printed
    assert "is ready after" in printed  # output of the server


@pytest.mark.slow
def test_a_server_that_does_not_start_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = measure([Run("tiny-llama", "--max-model-len 99999999", ())], "cpu", 100)
    assert [(outcome.tried, outcome.is_good) for outcome in outcomes] == [("start", False)]
    assert "max-model-len" in "".join(outcomes[0].log)
    assert "| start | FAILED: " in capsys.readouterr().out


def test_no_server_is_started_when_no_time_is_left() -> None:
    [outcome] = measure([Run("tiny-llama", "", (broken,))], "cpu", 0)
    assert (outcome.is_good, outcome.result) == (False, "no time was left")


def test_the_first_shape_is_tried_in_all_ways_and_the_others_too() -> None:
    chosen = runs(at_work.GPU_SHAPES, scale_of("cuda"))
    assert {run.shape for run in chosen} == set(at_work.GPU_SHAPES)
    assert len({(run.shape, run.options) for run in chosen}) == len(chosen)
    assert all(run.options for run in chosen)


def answer(*ids: int, gap: float = 0.5) -> Answer:
    """Returns an answer in which the second likeliest token of each position is the next id."""
    return Answer(list(ids), tops=[{token: -1.0, token + 1: -1.0 - gap, token - 1: -1.0 - gap} for token in ids])


def test_answers_part_at_near_ties_alone() -> None:
    assert compared(answer(1, 2), answer(1, 2), is_invariant=True) == "equal"
    assert "near tie at token 1" in compared(answer(1, 2, gap=0.01), answer(1, 3, gap=0.01), is_invariant=False)
    for one, other, is_invariant, seen in (
        (answer(1, 2, gap=0.01), answer(1, 3, gap=0.01), True, "token 1 is 2 and 3"),
        (answer(1, 2), answer(1, 3), False, "differ by 0.500"),
        (answer(1, 2), answer(1, 9), False, "not among"),
        (answer(1, 2), answer(1), False, "2 tokens and 1"),
    ):
        with pytest.raises(Unexpected, match=seen):
            compared(one, other, is_invariant)


def test_a_stream_that_lacks_tokens_is_not_complete() -> None:
    with pytest.raises(Unexpected, match="stream 0 has 2 tokens of 3"):
        complete([answer(1, 2)], 3)
