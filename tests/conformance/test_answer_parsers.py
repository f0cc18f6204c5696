"""What every parser of answers must do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import NO_CONTEXT
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, Reasoning, ToolCall
from gateway.answers.parser import AnswerParser, ParserChain
from gateway.answers.registry import parser_class
from gateway.reasoning_parsers import REASONING_PARSERS
from gateway.tool_parsers import TOOL_PARSERS
from quire.errors import StartupError
from tests.support.answer_parsers import CallParser, ThinkParser

# Parser → words of its format, whole and cut, which the texts are made of. A parser that is registered needs its own.
WORDS: Mapping[str, Sequence[str]] = {
    "think": ("<think>", "</think>", "<think", "</", "<", ">"),
    "call": ("<call>", "</call>", "<call", "f {}", "</call", "<"),
    "think, call": ("<think>", "</think>", "<call>", "</call>", "g [1]", "<"),
    "none": ("<think>", "<call>"),
}
CHAINS: Mapping[str, Callable[[], list[AnswerParser]]] = {
    "think": lambda: [ThinkParser(NO_CONTEXT)],
    "call": lambda: [CallParser(NO_CONTEXT)],
    "think, call": lambda: [ThinkParser(NO_CONTEXT), CallParser(NO_CONTEXT)],
    "none": list,
    **{
        name: lambda registry=registry, name=name: [parser_class(registry, name)(NO_CONTEXT)]
        for registry in (REASONING_PARSERS, TOOL_PARSERS)
        for name in registry
    },
}
END = Finish(FinishReason.STOP, "x")
PLAIN = ("a", " ", "é", "\n", "🙂", "{}", "two words")

every_chain = pytest.mark.parametrize("name", CHAINS)


def texts(name: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from((*WORDS[name], *PLAIN)), max_size=12).map("".join)


def deltas_of(name: str, pieces: Iterable[str]) -> list[Delta]:
    chain = ParserChain(CHAINS[name]())
    fed = [chain.feed((Content(piece),)) for piece in pieces]
    return [delta for deltas in (*fed, chain.feed((END,))) for delta in deltas]


def collected(deltas: Sequence[Delta]) -> tuple[str, str, list[ToolCall], Finish]:
    choice = CollectedChoice()
    choice.add(ChoiceUpdate(0, tuple(deltas), ()))
    return choice.content, choice.reasoning, list(choice.tool_calls.values()), choice.finish


@every_chain
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_how_a_text_is_cut_makes_no_difference(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(name))
    whole = collected(deltas_of(name, [text]))
    assert collected(deltas_of(name, text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert collected(deltas_of(name, [piece for piece in pieces if piece])) == whole


@every_chain
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_end_comes_last_and_nothing_is_empty(name: str, data: st.DataObject) -> None:
    deltas = deltas_of(name, data.draw(texts(name)))
    assert deltas[-1] is END
    assert not [delta for delta in deltas[:-1] if isinstance(delta, Finish)]
    assert all(delta.text for delta in deltas if isinstance(delta, Content | Reasoning))


@every_chain
@given(pieces=st.lists(st.sampled_from(PLAIN)))
@settings(max_examples=50, deadline=None)
def test_plain_text_stays_whole(name: str, pieces: list[str]) -> None:
    content, reasoning, calls, _ = collected(deltas_of(name, pieces))
    assert (reasoning + content, calls) == ("".join(pieces), [])


@every_chain
def test_what_others_have_found_passes(name: str) -> None:
    chain = ParserChain(CHAINS[name]())
    for delta in (Reasoning("<think>a<call>"), ToolCall(0, "<think>", "id", "f")):
        assert list(chain.feed((delta,))) == [delta]


@every_chain
def test_choices_do_not_share_anything(name: str) -> None:
    text = "".join(WORDS[name])
    one, other = ParserChain(CHAINS[name]()), ParserChain(CHAINS[name]())
    found: tuple[list[Delta], list[Delta]] = ([], [])
    for piece in text:
        for chain, deltas in zip((one, other), found, strict=True):
            deltas.extend(chain.feed((Content(piece),)))
    for chain, deltas in zip((one, other), found, strict=True):
        deltas.extend(chain.feed((END,)))
        assert collected(deltas) == collected(deltas_of(name, text))


def test_the_formats_of_these_tests() -> None:
    """Reasoning, a call and content, in a chain of two."""
    text = "<think>why <call></think>so <call>f {}</call>!"
    calls = [ToolCall(0, "{}", "call-0", "f")]
    assert collected(deltas_of("think, call", text)) == ("so !", "why <call>", calls, END)


def test_a_registered_name_is_loaded_and_another_refused() -> None:
    registry = {"think": "tests.support.answer_parsers:ThinkParser"}
    assert parser_class(registry, "think") is ThinkParser
    with pytest.raises(StartupError, match=r"thunk.*think"):
        parser_class(registry, "thunk")
