"""Drafts from the sequence's own text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.speculative.guesser import continued
from engine_svc.speculative.ngram import NgramGuesser
from tests.support.speculation import go_on, sequence


def guessed(tokens: list[int], most: int = 4, least: int = 2, longest: int = 4) -> tuple[int, ...]:
    guesser = NgramGuesser(least, longest)
    guess = guesser.guess(sequence(tokens[:-1], tokens[-1:]), most)
    return guess.token_ids if guess else ()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], (3, 4, 5, 6)),
        ([1, 2, 3, 9, 1, 2, 5, 9, 1, 2], (5, 9, 1, 2)),  # the later of two equal matches
        ([7, 1, 2, 3, 9, 1, 2, 5, 7, 1, 2], (3, 9, 1, 2)),  # the longer match, though not the latest
        ([1, 2, 3, 4], ()),
        ([5, 1, 7, 1], ()),  # one token is less than the minimum
        ([8, 3, 3, 3], (3, 3, 3, 3)),  # past the text's end, repeats what came before
        ([1, 2, 1, 2], (1, 2, 1, 2)),
        ([1], ()),
    ],
)
def test_what_followed_the_last_tokens_before(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert guessed([0, *tokens]) == expected


def test_lengths_that_the_configuration_asks_for() -> None:
    assert guessed([5, 1, 7, 1], least=1, longest=1, most=2) == (7, 1)
    assert guessed([4, 5, 6, 7, 4, 8, 6], least=3, longest=3) == ()
    # Both match as far as is looked: the later one counts, though the other one agrees for longer.
    assert guessed([9, 8, 1, 2, 5, 5, 1, 2, 7, 7, 9, 8, 1, 2], longest=2, most=1) == (7,)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=60), st.data())
def test_token_by_token_or_in_runs_it_is_the_same_text(tokens: list[int], data: st.DataObject) -> None:
    """Guesses continue an earlier occurrence of the last two tokens, however tokens came and guesses were asked for."""
    guesser, made = NgramGuesser(2, 4), sequence(tokens[:1], tokens[1:2])
    position = 2
    while position < len(tokens):
        count = data.draw(st.integers(1, 4))
        go_on(made, tokens[position : position + count])
        position += count
        guesser.begin()
        if data.draw(st.booleans()) and (guess := guesser.guess(made, 3)):
            text = list(made.token_ids)
            pairs = [at for at in range(2, len(text)) if text[at - 2 : at] == text[-2:]]
            assert guess.token_ids in [continued(text, at, 3) for at in pairs]


def test_a_long_prompt_is_taken_in_step_by_step() -> None:
    guesser, made = NgramGuesser(2, 4), sequence([1, 2, 3, *range(10, 3000), 1], [2])
    assert guesser.guess(made, 3) == guesser.guess(made, 3)  # no more than one step's share of the text is indexed
    steps = 1
    while (guess := guesser.guess(made, 3)) is None or guess.token_ids != (3, 10, 11):
        guesser.begin()
        steps += 1
        assert steps < 10
    assert guess.kind > 0


def test_the_placeholders_of_embeddings_are_no_text() -> None:
    made = sequence([0] * 6, [4, 5, 6])
    made.owner.request = made.owner.request.__class__("r", [], prompt_embeds=_Embeds())  # type: ignore[arg-type]
    assert NgramGuesser(1, 1).guess(made, 2) is None
    go_on(made, [4])
    guess = NgramGuesser(1, 1).guess(made, 2)
    assert guess is not None
    assert guess.token_ids == (5, 6)


class _Embeds:
    num_tokens = 6


def test_nothing_is_kept_of_what_has_ended() -> None:
    guesser, made = NgramGuesser(2, 4), sequence([1, 2, 1], [2])
    assert guesser.guess(made, 2)
    guesser.forget(made)
    guesser.forget(made)
    assert guesser.guess(sequence([5], [6]), 2) is None


@pytest.mark.parametrize("size", [1_000, 9_000])
def test_a_token_costs_the_same_in_a_long_text(size: int) -> None:
    """Thousands of tokens per second are usual, whereas searching the text would take milliseconds for each."""
    guesser, made = NgramGuesser(2, 4), sequence([index * 7919 % 997 for index in range(size)], [1])
    for _ in range(size // 1000 + 1):
        guesser.begin()
        guesser.guess(made, 8)
    start = time.thread_time()
    for token in range(100):
        go_on(made, [token])
        guesser.begin()
        guesser.guess(made, 8)
    assert time.thread_time() - start < 1.0
