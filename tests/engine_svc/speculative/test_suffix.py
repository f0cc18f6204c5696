"""Drafts from the sequence's own text and from earlier answers."""

from __future__ import annotations

from typing import Any

from engine_svc.speculative.answers import Answers
from engine_svc.speculative.suffix import SuffixGuesser
from quire.options.speculative import SpeculativeConfig
from tests.support.speculation import go_on, sequence


def make(**keys: Any) -> SuffixGuesser:
    return SuffixGuesser(SpeculativeConfig("suffix", **keys))


def answered(guesser: SuffixGuesser, prompt: list[int], output: list[int], tenant: str = "") -> None:
    made = sequence(prompt, output, cache_salt=tenant)
    guesser.guess(made, 1)
    guesser.forget(made)
    guesser.begin()


def tokens_of(guesser: SuffixGuesser, tokens: list[int], most: int = 4, tenant: str = "") -> tuple[int, ...]:
    guess = guesser.guess(sequence(tokens[:-1], tokens[-1:], cache_salt=tenant), most)
    return guess.token_ids if guess else ()


def test_what_followed_in_an_earlier_answer() -> None:
    guesser = make()
    answered(guesser, [1, 2], [3, 4, 5, 6, 7])
    assert tokens_of(guesser, [9, 9, 2, 3, 4]) == (5, 6, 7)
    assert tokens_of(guesser, [8, 1, 2]) == (3, 4)  # an answer's start, found by the prompt's end; as long as the match
    assert tokens_of(guesser, [9, 8]) == ()


def test_nobody_finds_what_another_tenant_was_answered() -> None:
    guesser = make()
    answered(guesser, [1, 2], [3, 4, 5, 6, 7], tenant="a")
    assert tokens_of(guesser, [2, 3, 4], tenant="b") == ()
    assert tokens_of(guesser, [2, 3, 4], tenant="") == ()
    assert tokens_of(guesser, [2, 3, 4], tenant="a") == (5, 6, 7)


def test_the_majority_is_followed_while_enough_agree() -> None:
    """Of 4 answers, 3 continue with the first token, all 3 with the next, and 2 with the last: half of all."""
    for least, expected in ((0.5, (5, 6, 7)), (0.6, (5, 6)), (0.8, ())):
        guesser = make(suffix_decoding_min_token_prob=least)
        for end in ([5, 6, 7], [5, 6, 8], [5, 6, 7], [9, 9, 9]):
            answered(guesser, [0], [1, 2, 3, 4, *end])
        assert tokens_of(guesser, [1, 2, 3, 4]) == expected


def test_the_longest_match_wins_and_says_how_far_to_guess() -> None:
    guesser = make(suffix_decoding_max_spec_factor=1.0)
    answered(guesser, [0], [7, 1, 2, 3, 4, 5, 6])
    answered(guesser, [0], [8, 1, 2, 9, 9, 9, 9])
    assert tokens_of(guesser, [7, 1, 2]) == (3, 4, 5)
    assert tokens_of(guesser, [8, 1, 2]) == (9, 9, 9)
    doubled = make(suffix_decoding_max_spec_factor=2.0)
    answered(doubled, [0], [7, 1, 2, 3, 4, 5, 6])
    assert tokens_of(doubled, [5, 1, 2], most=9) == (3, 4, 5, 6)


def test_matches_are_followed_as_tokens_come() -> None:
    guesser = make()
    answered(guesser, [0], [1, 2, 3, 4, 5, 6, 7, 8])
    made = sequence([9, 1], [2])
    first = guesser.guess(made, 8)
    assert first is not None
    go_on(made, [3, 4])
    second = guesser.guess(made, 8)
    assert second is not None
    assert (first.token_ids, second.token_ids) == ((3, 4), (5, 6, 7, 8))
    assert second.kind > first.kind  # the match is longer
    go_on(made, [9])
    assert guesser.guess(made, 8) is None


def test_its_own_text_counts_as_well() -> None:
    assert tokens_of(make(suffix_decoding_max_cached_requests=0), [1, 2, 3, 4, 1, 2]) == (3, 4)


def test_none_are_kept_where_none_are_to_be() -> None:
    guesser = make(suffix_decoding_max_cached_requests=0)
    answered(guesser, [1, 2], [3, 4, 5])
    assert tokens_of(guesser, [2, 3]) == ()


def test_a_guess_ends_with_its_answer() -> None:
    guesser = make(suffix_decoding_max_spec_factor=4.0)
    answered(guesser, [0], [1, 2, 3])
    answered(guesser, [0], [7, 7, 7])
    assert tokens_of(guesser, [1, 2], most=8) == (3,)


def test_answers_stay_within_their_bounds() -> None:
    answers = Answers(width=2, most_answers=10, most_tokens=200)
    for number in range(300):
        answers.add(f"tenant {number % 7}", list(range(number, number + 30)))
        answers.take_in(1000)
        assert answers.num_tokens <= 200 + 31
        assert sum(generation.num_answers for generation in answers.generations) <= 11
    for _ in range(200):
        answers.add("flood", list(range(100)))
    answers.take_in(10**6)
    assert answers.num_tokens <= 200 + 101


def test_an_answer_is_taken_in_within_the_steps_share() -> None:
    answers = Answers(width=2, most_answers=100, most_tokens=10**6)
    for _ in range(10):
        answers.add("", list(range(1000)))
    answers.take_in(1500)
    assert answers.num_tokens == 2 * 1001
