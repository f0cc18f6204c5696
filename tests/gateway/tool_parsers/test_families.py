"""Every tool-call family: output is parsed correctly however it is chunked, and arbitrary input is handled safely."""

from __future__ import annotations

import itertools
import json
import random
import time

import pytest

from gateway.answers.deltas import ToolCall
from gateway.tool_parsers import TOOL_PARSERS
from tests.support.parser_classes import parser_class
from tests.support.tool_formats import (
    CONTEXT,
    FORMS,
    ONE_OF_EACH_FORMAT,
    TURNS,
    Call,
    Turn,
    deltas_of,
    marks_of,
    parse,
    render,
    turns_of,
)

every_family = pytest.mark.parametrize("family", FORMS)
every_format = pytest.mark.parametrize("family", ONE_OF_EACH_FORMAT)
HOSTILE_CHARACTERS = 2**10
SECONDS = 7.5


def test_every_family_has_a_form() -> None:
    assert FORMS.keys() == TOOL_PARSERS.keys()


@every_family
def test_what_is_rendered_is_parsed_and_rendered_again_the_same(family: str) -> None:
    for turn in turns_of(family):
        text = render(family, turn)
        content, calls = parse(family, text)
        again = Turn(content, tuple(Call(name, json.loads(arguments)) for name, arguments in calls))
        assert again == turn
        assert render(family, again) == text


def turns_to_cut(family: str) -> list[Turn]:
    """Every kind of argument, each call on its own; and two calls one after the other, after text, where possible."""
    form = FORMS[family]
    calls = TURNS[-1].calls if form.several else TURNS[-1].calls[:1]
    return [*turns_of(family)[2:5], Turn(TURNS[-1].content if form.content else "", calls)]


@every_format
def test_how_a_text_is_cut_changes_no_byte(family: str) -> None:
    for number, turn in enumerate(turns_to_cut(family)):
        text = render(family, turn)
        whole = parse(family, text)
        assert parse(family, *text) == whole
        for place in range(number % 2, len(text) + 1, 2):
            assert parse(family, text[:place], text[place:]) == whole


@every_format
def test_how_many_tokens_come_at_once_changes_no_byte(family: str) -> None:
    choose, turns = random.Random(family), turns_of(family)
    for number in range(30):
        text = render(family, turns[number % len(turns)])
        cuts = sorted({0, len(text), *choose.choices(range(len(text) + 1), k=choose.randrange(21))})
        pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
        assert parse(family, *pieces) == parse(family, text), pieces


@every_family
def test_a_name_comes_before_its_arguments_and_these_as_they_come(family: str) -> None:
    call = Call("get_weather", {"city": "x" * 200})
    text = render(family, Turn("", (call,)))
    named_at, pieces = None, 0
    parser = parser_class(TOOL_PARSERS, family)(CONTEXT)
    for place, character in enumerate(text):
        for delta in parser.parse(character):
            assert isinstance(delta, ToolCall)
            named_at = place if delta.name else named_at
            pieces += bool(delta.arguments)
    assert named_at is not None
    assert named_at < text.index("xx")
    assert pieces > 190


@every_format
def test_a_text_that_breaks_off_keeps_what_it_had(family: str) -> None:
    """Parsing never fails, arguments are a prefix of the full ones, and text that is not yet a call stays content."""
    for number, turn in enumerate(turns_to_cut(family)):
        text = render(family, turn)
        _, whole = parse(family, text)
        for place in range(number % 2, len(text), 2):
            content, calls = parse(family, text[:place])
            assert [name for name, _ in calls] == [name for name, _ in whole[: len(calls)]]
            assert all(full.startswith(begun) for (_, begun), (_, full) in zip(calls, whole, strict=False))
            if not calls:
                assert content == text[:place] or family == "gigachat3"


@every_format
def test_whatever_comes_is_read_in_linear_time(family: str) -> None:
    """After prefixes of a call, repetitive input is parsed in linear time, both in one piece and streamed."""
    call = render(family, Turn("", (Call("get_weather", {"city": "x", "days": 3}),)))
    begun = [call[:length] for length in range(0, len(call) + 1, 9)]
    words = ["{", "[", '"', "\\", " ", "<", '{"a":', '"a":1,', "f(", "a=", ",", ";", "1", *marks_of(family)]
    started = time.thread_time()
    for number, before in enumerate(begun):
        for word in words[number % 3 :: 3]:
            deltas_of(family, [before + word * (HOSTILE_CHARACTERS // len(word))])
    mixed = "".join(random.Random(0).choices([*words, *begun], k=HOSTILE_CHARACTERS))
    deltas_of(family, [mixed[i : i + 4] for i in range(0, len(mixed), 4)])
    assert time.thread_time() - started < SECONDS
