"""Where thinking begins and ends in a sequence's tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequest
from quire.reasoning import ReasoningMarks, ReasoningTracker

# a to z are tokens of words, < and > the marks, - is the line break.
START, END, BLANK = "<", ">", "-"


def marks(start: str = START, end: str = END, *, is_open: bool = False, is_optional: bool = False) -> ReasoningMarks:
    return ReasoningMarks(ids(start), ids(end), is_open, is_optional, ids(BLANK))


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def state(of: ReasoningMarks, *pieces: str) -> tuple[bool, bool, int]:
    """(is thinking, is answering, tokens of thinking)"""
    tracker = ReasoningTracker(of)
    for piece in pieces:
        tracker.advance(ids(piece))
    return tracker.thinks, tracker.answers, tracker.num_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (True, False, 0)),
        ("abc", (True, False, 3)),
        ("<abc", (True, False, 3)),  # repeats the mark that the prompt has
        ("-<abc", (True, False, 3)),
        ("abc>", (False, False, 3)),
        ("abc>--", (False, False, 3)),
        ("abc>-d", (False, True, 3)),
        ("abc>d<e>", (False, True, 3)),  # an answer may contain marks
        (">d", (False, True, 0)),
    ],
)  # fmt: skip
def test_a_prompt_that_has_opened_it(text: str, expected: tuple[bool, bool, int]) -> None:
    assert state(marks(is_open=True, is_optional=True), text) == expected
    assert state(marks(), text) == expected, "nor does it need to be opened where it is not optional"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (False, False, 0)),
        ("--", (False, False, 0)),
        ("abc", (False, True, 0)),
        ("a<bc>d", (False, True, 0)),
        ("--<ab", (True, False, 2)),
        ("<ab>-c", (False, True, 2)),
    ],
)  # fmt: skip
def test_an_output_that_may_open_it(text: str, expected: tuple[bool, bool, int]) -> None:
    assert state(marks(is_optional=True), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<a>x", (False, True, 0)),  # not a mark after all, so it is the answer
        ("<ab", (True, False, 0)),
        ("<abxyyz", (True, False, 4)),
        ("<abxyyzd", (False, False, 1)),
        ("<abyyyzdw", (False, True, 1)),
    ],
)  # fmt: skip
def test_marks_of_several_tokens(text: str, expected: tuple[bool, bool, int]) -> None:
    assert state(marks("<ab", "yyzd", is_optional=True), text) == expected


def test_what_looks_like_a_start_mark_is_thinking() -> None:
    assert state(marks("<ab", ">"), "<axc>") == (False, False, 4)


def test_blanks_that_may_not_stand_before_a_start_mark() -> None:
    tracker = ReasoningTracker(marks(is_optional=True), after_blanks=False)
    tracker.advance(ids("-<ab"))
    assert (tracker.thinks, tracker.answers, tracker.num_tokens) == (False, True, 0)


@given(st.text("<>-ab", max_size=12), st.booleans(), st.booleans(), st.integers(0, 12))
def test_how_tokens_come_makes_no_difference(text: str, is_open: bool, is_optional: bool, cut: int) -> None:
    of = marks("<a", ">b", is_open=is_open, is_optional=is_optional)
    assert state(of, text) == state(of, *text) == state(of, text[:cut], text[cut:])


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        (ReasoningMarks((1,), ()), "reasoning"),
        (ReasoningMarks((), (1,), is_optional=True), "reasoning"),
        (ReasoningMarks((1,), (2,) * 17), "reasoning"),
        (ReasoningMarks((1,), (2,), blank_token_ids=(3,) * 17), "reasoning"),
        (ReasoningMarks((1,), (100,)), "reasoning.end_token_ids"),
    ],
)  # fmt: skip
def test_marks_that_cannot_be(wrong: ReasoningMarks, parameter: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        wrong.check("reasoning", 100)
    assert error.value.parameter == parameter


def test_marks_that_can_be() -> None:
    ReasoningMarks((), (2,)).check("reasoning", 100)
    marks(is_optional=True).check("reasoning", 256)
