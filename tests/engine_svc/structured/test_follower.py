"""The follower of one sequence: thinking, grammar and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine_svc.structured.follower import Endings, Follower
from quire.reasoning import ReasoningMarks
from quire.structured.base import Grammar, Matcher, mask_words
from quire.structured.guidance import GuidanceBackend
from tests.support.grammars import EOS, VOCABULARY_SIZE, matching, spell, vocabulary

STOP = 1
ENDINGS = Endings(frozenset([EOS, STOP]), frozenset([EOS]))
(OPEN,), (CLOSE,), (BLANK,) = ([each] for each in (vocabulary().tokenizer.token_to_id(name)  # type: ignore[union-attr]
                                                  for name in ("<think>", "</think>", "Ċ")))  # fmt: skip
ANSWER = spell("ab")[0]


def follow(pattern: str, marks: ReasoningMarks | None = None, endings: Endings = ENDINGS) -> Follower:
    grammar = GuidanceBackend(vocabulary()).read(matching(pattern).grammar)
    return Follower(grammar, endings, marks)


def allowed(follower: Follower) -> set[int]:
    row = np.empty(mask_words(VOCABULARY_SIZE), np.int32)
    follower.fill(row)
    return bits(row)


def bits(row: Any) -> set[int]:
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def texts(token_ids: set[int]) -> set[bytes]:
    return {vocabulary().tokens[each] for each in token_ids}


def test_endings_are_allowed_where_the_grammar_is_complete_and_nowhere_else() -> None:
    follower = follow("(a|b)+")
    assert not allowed(follower) & {EOS, STOP}
    follower.append(spell("a"))
    assert allowed(follower) >= {EOS, STOP, *spell("b")}
    follower.append([EOS])
    assert not follower.error


def test_an_end_of_sequence_that_the_request_ignores_is_never_allowed() -> None:
    follower = follow("(a|b)+", endings=Endings(frozenset(), frozenset([EOS])))
    follower.append(spell("a"))
    assert not allowed(follower) & {EOS, STOP}


def test_the_grammars_end_is_told_with_its_last_token() -> None:
    follower = follow("[ab]{2}")
    follower.append(spell("a"))
    assert not follower.is_ended
    follower.append(spell("b"))
    assert follower.is_ended


def test_a_token_that_does_not_fit_is_an_error_for_good() -> None:
    follower = follow("[ab]{2}")
    follower.append(spell("x"))
    assert follower.error
    follower.append(spell("a"))
    assert follower.error


def test_all_but_the_end_is_allowed_in_open_thinking() -> None:
    follower = follow("ab", ReasoningMarks((OPEN,), (CLOSE,), is_open=True))
    assert set(range(VOCABULARY_SIZE)) - allowed(follower) == {EOS}
    follower.append([7, CLOSE])
    assert texts(allowed(follower)) <= {b"a", b"ab"}
    follower.append(spell("ab"))
    assert follower.is_ended


def test_thinking_that_is_optional_may_begin_where_the_answer_may() -> None:
    marks = ReasoningMarks((OPEN,), (CLOSE,), is_optional=True)
    follower = follow("ab", marks)
    assert OPEN in allowed(follower)
    assert texts(allowed(follower) - {OPEN}) <= {b"a", b"ab"}
    answers = follow("ab", marks)
    answers.append(spell("a"))
    assert texts(allowed(answers)) == {b"b"}
    follower.append([OPEN])
    assert set(range(VOCABULARY_SIZE)) - allowed(follower) == {EOS}
    follower.append([5, 6, CLOSE])
    assert OPEN not in allowed(follower)
    follower.append(spell("ab"))
    assert follower.is_ended


def test_a_start_mark_of_several_tokens_is_finished_once_it_is_begun() -> None:
    marks = ReasoningMarks((5, 6, 7), (CLOSE,), is_optional=True)
    follower = follow("ab", marks)
    assert 5 in allowed(follower)
    follower.append([5])
    assert allowed(follower) == {6}
    follower.append([6])
    assert allowed(follower) == {7}
    follower.append([7])
    assert set(range(VOCABULARY_SIZE)) - allowed(follower) == {EOS}


@pytest.mark.parametrize("pattern", ["ab", r"\n?ab"])
def test_line_breaks_may_follow_the_thinking_and_come_to_an_end(pattern: str) -> None:
    follower = follow(pattern, ReasoningMarks((OPEN,), (CLOSE,), is_open=True, blank_token_ids=(BLANK,)))
    follower.append([9, CLOSE])
    blanks = 0
    while BLANK in allowed(follower):
        follower.append([BLANK])
        blanks += 1
        assert blanks < 10
    assert blanks > 1
    follower.append(spell("ab"))
    assert follower.is_ended
    assert not follower.error


def test_no_line_break_comes_before_an_answer_without_thinking() -> None:
    """A line break would be part of the answer, where only the grammar decides."""
    marks = ReasoningMarks((OPEN,), (CLOSE,), is_optional=True, blank_token_ids=(BLANK,))
    assert BLANK not in allowed(follow("ab", marks))
    follower = follow(r"\nab", marks)
    assert {BLANK, OPEN} <= allowed(follower)
    follower.append([BLANK])
    assert not {BLANK, OPEN} & allowed(follower)
    follower.append(spell("ab"))
    assert follower.is_ended
    assert not follower.error


def test_an_empty_grammar_does_not_end_what_may_still_think() -> None:
    follower = follow("", ReasoningMarks((OPEN,), (CLOSE,), is_optional=True))
    assert OPEN in allowed(follower)
    assert not follower.is_ended
    follower.append([OPEN, 5, CLOSE])
    allowed(follower)
    assert follower.is_ended


@pytest.mark.parametrize("cut", range(6))
def test_however_tokens_come_the_state_is_the_same(cut: int) -> None:
    marks = ReasoningMarks((5, 6), (7, 8), is_optional=True, blank_token_ids=(BLANK,))
    token_ids = [5, 6, 9, 7, 7, 8, BLANK, *spell("a")]
    whole, parts = follow("ab", marks), follow("ab", marks)
    whole.append(token_ids)
    parts.append(token_ids[:cut])
    parts.append(token_ids[cut:])
    assert allowed(whole) == allowed(parts) == set(spell("b"))


def test_looking_ahead_changes_nothing() -> None:
    follower = follow("a[bc]{3}(de|fg)?")
    follower.append(spell("a"))
    before = allowed(follower)
    (b,), (c,), (d,), (e,) = (spell(each) for each in "bcde")
    assert follower.count_fitting([b, c, a_token()]) == 2
    assert follower.count_fitting([b, c, b, EOS]) == 3
    assert follower.count_fitting([b, c, b, d, e, b]) == 4  # the token that ends it is not counted
    rows = np.empty((4, mask_words(VOCABULARY_SIZE)), np.int32)
    assert follower.fill_behind([b, c, b, d], rows) == 5
    assert [bits(row) == allowed_behind([b, c, b, d][: count + 1]) for count, row in enumerate(rows)] == [True] * 4
    assert allowed(follower) == before
    follower.append([b, c, b, d])
    assert not follower.error
    follower.append([e])
    assert follower.is_ended


def a_token() -> int:
    return spell("a")[0]


def allowed_behind(token_ids: list[int]) -> set[int]:
    follower = follow("a[bc]{3}(de|fg)?")
    follower.append([a_token(), *token_ids])
    return allowed(follower)


def test_looking_ahead_finds_the_thinkings_end_and_forgets_it() -> None:
    follower = follow("ab", ReasoningMarks((OPEN,), (CLOSE,), is_open=True))
    assert follower.count_fitting([7, CLOSE, 8]) == 2
    assert follower.count_fitting([7, CLOSE, a_token(), 8]) == 3
    assert set(range(VOCABULARY_SIZE)) - allowed(follower) == {EOS}


def test_a_run_behind_which_nothing_can_come_is_cut_there() -> None:
    """A backend may notice this late: the last draft that fits is the one before an empty mask."""
    follower = Follower(LateGrammar(), ENDINGS)
    assert follower.count_fitting([5, 5]) == 2
    rows = np.empty((2, mask_words(VOCABULARY_SIZE)), np.int32)
    assert follower.fill_behind([5, 5], rows) == 2
    assert bits(rows[1]) == set(range(32 * mask_words(VOCABULARY_SIZE)))
    assert not follower.is_ended
    follower.append([5, 5])
    assert not follower.is_ended
    follower.find_end()
    assert follower.is_ended


class Faulty(Grammar, Matcher):
    """A grammar library that raises."""

    error, is_complete, is_stopped = "", False, False

    def matcher(self) -> Matcher:
        return self

    def accept(self, token_ids: Sequence[int]) -> int:
        raise ZeroDivisionError

    def roll_back(self, num_tokens: int) -> None: ...

    def fill(self, row: Any) -> None:
        raise ZeroDivisionError


def test_what_a_library_raises_is_the_sequences_own_error() -> None:
    follower, other = Follower(Faulty(), ENDINGS), Follower(Faulty(), ENDINGS)
    follower.append([5])
    assert "ZeroDivisionError" in follower.error
    allowed(other)
    assert "ZeroDivisionError" in other.error


class LateGrammar(Grammar, Matcher):
    """Accepts two tokens 5, and then has an empty mask."""

    error, is_stopped = "", False

    def __init__(self) -> None:
        self.accepted = 0

    def matcher(self) -> Matcher:
        return LateGrammar()

    @property
    def is_complete(self) -> bool:
        return self.accepted == 2

    def accept(self, token_ids: Sequence[int]) -> int:
        fitting = [*token_ids] == [5] * len(token_ids) and self.accepted + len(token_ids) <= 2
        self.accepted += len(token_ids) * fitting
        return len(token_ids) * fitting

    def roll_back(self, num_tokens: int) -> None:
        self.accepted -= num_tokens

    def fill(self, row: Any) -> None:
        row[:] = 0
        row[0] = 32 * (self.accepted < 2)


class Brittle(LateGrammar):
    """Like LateGrammar, but a third token breaks it permanently."""

    def matcher(self) -> Matcher:
        return Brittle()

    def accept(self, token_ids: Sequence[int]) -> int:
        for token_id in token_ids:
            if not super().accept([token_id]):
                self.error = "broken"
                return 0
        return len(token_ids)


class Raising(LateGrammar):
    """Like LateGrammar, but a third token raises."""

    def matcher(self) -> Matcher:
        return Raising()

    def accept(self, token_ids: Sequence[int]) -> int:
        if super().accept(token_ids) < len(token_ids):
            raise ZeroDivisionError
        return len(token_ids)


@pytest.mark.parametrize("grammar", [Brittle(), Raising()])
def test_what_a_guess_breaks_is_begun_anew_and_nothing_is_guessed_any_more(grammar: Grammar) -> None:
    follower = Follower(grammar, ENDINGS)
    follower.append([5])
    assert follower.count_fitting([5, 5]) == 1
    assert not follower.error
    assert allowed(follower) == {5}
    assert follower.count_fitting([5]) == 0
    follower.append([5])
    assert not follower.error
    follower.find_end()
    assert follower.is_ended
