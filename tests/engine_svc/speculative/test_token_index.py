"""Occurrences of the last tokens in a text, against a search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_svc.speculative.token_index import TokenIndex


def searched(tokens: list[int], indexed: int, width: int, start: int) -> list[int]:
    """Returns positions after occurrences of the last `width` tokens among the first `indexed`, the latest first."""
    last = tokens[-width:]
    ends = range(start + width, indexed + 1)
    return [end for end in reversed(ends) if tokens[end - width : end] == last and end < len(tokens)]


@given(
    st.lists(st.integers(0, 3), max_size=40), st.integers(1, 2), st.integers(0, 5), st.lists(st.integers(0, 9)),
    st.integers(0, 10),
)  # fmt: skip
def test_occurrences_are_those_that_a_search_finds(
    tokens: list[int], width: int, start: int, budgets: list[int], later: int
) -> None:
    text = tokens[: len(tokens) - later]
    index = TokenIndex(text, width, start)
    for budget in budgets:
        assert 0 <= index.take_in(budget) <= budget
    text.extend(tokens[len(text) :])
    for budget in budgets:
        index.take_in(budget)
    assert start <= index.size <= max(start, len(text))
    if len(text) >= width:
        assert index.occurrences(text, 100) == searched(text, index.size, width, start)
        few = index.occurrences(text, 2)  # one of the two may be the text's end
        assert few == searched(text, index.size, width, start)[: len(few)]


@given(st.lists(st.integers(0, 1), min_size=4, max_size=30), st.data())
def test_how_much_agrees(tokens: list[int], data: st.DataObject) -> None:
    index = TokenIndex(tokens, 1, start=1)
    position = data.draw(st.integers(1, len(tokens)))
    agreeing = 0
    while agreeing < min(position - 1, 5) and tokens[position - 1 - agreeing] == tokens[-1 - agreeing]:
        agreeing += 1
    assert index.common(position, tokens, 5) == agreeing


def test_a_group_finds_its_own_tokens_only() -> None:
    tokens = [1, 2, 3]
    index = TokenIndex(tokens, 2)
    index.take_in(10, group=1)
    tokens += [1, 2, 4]
    index.take_in(10, group=2)
    tokens += [9]
    assert index.occurrences([1, 2], 5, group=1) == [2]
    assert index.occurrences([1, 2], 5, group=2) == [5]
    assert index.occurrences([1, 2], 5) == index.occurrences([2], 5, group=1) == []


def test_a_text_shorter_than_what_is_looked_for() -> None:
    index = TokenIndex([], 2)
    assert index.take_in(5) == 0
    assert index.size == 0
    assert index.occurrences([], 5) == []
