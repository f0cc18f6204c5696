"""The contract that every answer parser must meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pytest

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import NO_CONTEXT, AnswerContext, Tool
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, Reasoning, ToolCall
from gateway.answers.parser import AnswerParser, ParserChain
from gateway.answers.transcripts import TextAfterMark, TextInQuotes
from gateway.reasoning_parsers import REASONING_PARSERS
from gateway.reasoning_parsers.omitted import ReasoningOmitted
from gateway.tool_parsers import TOOL_PARSERS
from gateway.tool_parsers.first_call import FirstCallOnly
from gateway.tool_parsers.unmarked import NamedArguments, PlainCalls
from quire.errors import StartupError
from tests.support.answer_parsers import CallParser, ThinkParser
from tests.support.parser_classes import parser_class
from tests.support.tool_formats import ONE_OF_EACH_FORMAT
from tests.support.tool_formats import words_of as words_of_calls

# Parser → whole and truncated words of its format, from which texts are built. Every registered parser needs an entry.
WORDS: Mapping[str, Sequence[str]] = {
    "think": ("<think>", "</think>", "<think", "</", "<", ">"),
    "call": ("<call>", "</call>", "<call", "f {}", "</call", "<"),
    "think, call": ("<think>", "</think>", "<call>", "</call>", "g [1]", "<"),
    "none": ("<think>", "<call>"),
    "named": ("<call>", '{"a": ', "1}"),
    "plain calls": ('[{"name": "f", "parameters": ', '{"a": 1}', "}", "]", ", ", '{"name": "g", "parameters": {}}'),
    "hermes, the first": words_of_calls("hermes"),
    "think, call, omitted": ("<think>", "</think>", "<call>", "</call>", "g [1]", "<"),
    "after a mark": ("language English", TextAfterMark.mark, "<asr", "x" * 101, "\n"),
    "in quotes": ("The spoken content of the audio is", "The spoken", ' "', "'", '".', ".", "\n"),
}
# One family of each reasoning format → its complete words.
REASONING_WORDS: Mapping[str, Sequence[str]] = {
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "deepseek_r1": ("<think>", "</think>"),
    "deepseek_v4": ("<think>", "</think>", "<｜DSML｜tool_calls>", "\n" * 9),
    "deepseek_v41": ("<think>", "</think>", "<｜DSML｜ calls>", "<｜DSML｜ "),
    "ernie45": ("<think>", "</think>\n<response>", "\n</response>", "\n" * 9),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "granite": ("Here's my thought process:", "Here is my thought process: ", "Here's my response:",
                " Here is my response:", "<think>", "</think><response>", "</response>"),
    "hunyuan_a13b": ("<think>", "</think>\n<answer>", "\n</answer>", "\n" * 9),
    "hy_v3": ("<think:opensource>", "</think:opensource>"),
    "hy_v4": ("<think:6124c78e>", "</think:6124c78e>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>",
                "<|open|>tools<|sep|>", "<|close|>message<|sep|>", "<|open|>", "<|close|>", "<|sep|>"),
    "minimax_m2_append_think": ("<think>", "</think>", "\n" * 9),
    "minimax_m3": ("<mm:think>", "</mm:think>", "\n" * 9),
    "mistral": ("[THINK]", "[/THINK]"),
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant", "<|return|>", "x" * 250,
                      "<|channel|>final<|message|>", "<|call|>", " to=functions.f",
                      "<|channel|>commentary to=browser <|constrain|>json<|message|>",
                      "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"),
    "qwen3": ("<think>", "</think>", "\n" * 9),
    "seed_oss": ("<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>"),
    "solar_open2": ("<|think:start|>", "<|think:end|>", "<|tool_call:start|>", "<|t"),
}  # fmt: skip
OPENED = AnswerContext((Tool("f"),), thinking_is_open=True)
CHAINS: dict[str, Callable[[], list[AnswerParser]]] = {
    "think": lambda: [ThinkParser(NO_CONTEXT)],
    "call": lambda: [CallParser(NO_CONTEXT)],
    "think, call": lambda: [ThinkParser(NO_CONTEXT), CallParser(NO_CONTEXT)],
    "none": list,
    **{
        f"{name} reasoning{opened}": lambda name=name, context=context: [parser_class(REASONING_PARSERS, name)(context)]
        for name in REASONING_WORDS
        for opened, context in (("", NO_CONTEXT), (", opened", OPENED))
    },
    **{
        f"{name} tools": lambda name=name: [parser_class(TOOL_PARSERS, name)(NO_CONTEXT)] for name in ONE_OF_EACH_FORMAT
    },
}
# Parsers that drop or take over what others leave: how a text is split makes no difference to them either.
FURTHER: dict[str, Callable[[], list[AnswerParser]]] = {
    "named": lambda: [NamedArguments(OPENED)],
    "plain calls": lambda: [PlainCalls(NO_CONTEXT)],
    "hermes, the first": lambda: [parser_class(TOOL_PARSERS, "hermes")(NO_CONTEXT), FirstCallOnly(NO_CONTEXT)],
    "after a mark": lambda: [TextAfterMark(NO_CONTEXT)],
    "in quotes": lambda: [TextInQuotes(NO_CONTEXT)],
    "think, call, omitted": lambda: [ThinkParser(NO_CONTEXT), CallParser(NO_CONTEXT), ReasoningOmitted(NO_CONTEXT)],
}
END = Finish(FinishReason.STOP, "x")
PLAIN = ("a", " ", "é", "\n", "🙂", "{}", "two words")

every_chain = pytest.mark.parametrize("name", CHAINS)


def words_of(name: str) -> Sequence[str]:
    if name in WORDS:
        return WORDS[name]
    if name.endswith(" tools"):
        return words_of_calls(name.removesuffix(" tools"))
    words = REASONING_WORDS[name.split()[0]]
    return (*words, *(word[:-1] for word in words), *(word[1:] for word in words))


def texts(name: str, count: int) -> Iterator[tuple[random.Random, str]]:
    """Yields texts of up to 12 words of the format and plain ones; and what else to draw of."""
    choose = random.Random(name)
    words = (*words_of(name), *PLAIN)
    for _ in range(count):
        yield choose, "".join(choose.choices(words, k=choose.randrange(1, 13)))


def deltas_of(name: str, pieces: Iterable[str]) -> list[Delta]:
    """Feeds the pieces to a chain and returns its deltas. The end comes last, and no delta is empty."""
    chain = ParserChain((CHAINS | FURTHER)[name]())
    fed = [chain.feed((Content(piece),)) for piece in pieces]
    found = [delta for deltas in (*fed, chain.feed((END,))) for delta in deltas]
    assert found[-1] is END
    assert not [delta for delta in found[:-1] if isinstance(delta, Finish)]
    assert all(delta.text for delta in found if isinstance(delta, Content | Reasoning))
    return found


def collected(deltas: Sequence[Delta]) -> tuple[str, str, list[ToolCall], Finish]:
    """Returns (content, reasoning, calls, end), with the random ids of calls replaced."""
    choice = CollectedChoice()
    choice.add(ChoiceUpdate(0, tuple(deltas), ()))
    calls = [msgspec.structs.replace(call, id="id" if call.id else "") for call in choice.tool_calls]
    return choice.content, choice.reasoning, calls, choice.finish


def in_order_of(deltas: Sequence[Delta]) -> tuple[list[Delta], Finish]:
    """Returns (blocks or items in the order that some APIs report, at most one call each; end), with ids replaced."""
    choice = CollectedChoice()
    choice.add(ChoiceUpdate(0, tuple(deltas), ()))
    calls = choice.tool_calls
    assert [call.index for call in calls] == list(range(len(calls))), "a call went on after something else came"
    assert all(call.id for call in calls)
    parts = [msgspec.structs.replace(part, id="id") if isinstance(part, ToolCall) else part for part in choice.parts]
    return parts, choice.finish


@pytest.mark.parametrize("name", [*CHAINS, *FURTHER])
def test_how_a_text_is_cut_makes_no_difference(name: str) -> None:
    for choose, text in texts(name, 40):
        whole = in_order_of(deltas_of(name, [text]))
        assert in_order_of(deltas_of(name, text)) == whole, text
        cuts = sorted(choose.choices(range(len(text) + 1), k=choose.randrange(5)))
        pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
        assert in_order_of(deltas_of(name, [piece for piece in pieces if piece])) == whole, pieces


@every_chain
def test_plain_text_stays_whole(name: str) -> None:
    choose = random.Random(name)
    for count in range(20):
        check_plain_text(name, choose.choices(PLAIN, k=count))


def check_plain_text(name: str, pieces: Sequence[str]) -> None:
    content, reasoning, calls, _ = collected(deltas_of(name, pieces))
    content = content.removeprefix("<think>")  # which one parser adds
    text = "".join(pieces)
    # After a mark that is part of the prompt, whitespace belongs to the mark.
    assert (reasoning + content, calls) in ((text, []), (text.lstrip(" \n"), []), (text.lstrip("\n"), []))
    assert reasoning + content == text or name.endswith(", opened")


@every_chain
def test_what_others_have_found_passes(name: str) -> None:
    chain = ParserChain(CHAINS[name]())
    for delta in (Reasoning("<think>a<call>"), ToolCall(0, "<think>", "id", "f")):
        assert list(chain.feed((delta,))) == [delta]


@every_chain
def test_choices_do_not_share_anything(name: str) -> None:
    text = "".join(words_of(name))
    one, other = ParserChain(CHAINS[name]()), ParserChain(CHAINS[name]())
    found: tuple[list[Delta], list[Delta]] = ([], [])
    for piece in text:
        for chain, deltas in zip((one, other), found, strict=True):
            deltas.extend(chain.feed((Content(piece),)))
    for chain, deltas in zip((one, other), found, strict=True):
        deltas.extend(chain.feed((END,)))
        assert collected(deltas) == collected(deltas_of(name, text))


def test_every_format_of_reasoning_is_tried() -> None:
    assert {REASONING_PARSERS[name] for name in REASONING_WORDS} == set(REASONING_PARSERS.values())


def test_the_formats_of_these_tests() -> None:
    """A chain of two parsers separates reasoning, a call and content."""
    text = "<think>why <call></think>so <call>f {}</call>!"
    calls = [ToolCall(0, "{}", "id", "f")]
    assert collected(deltas_of("think, call", text)) == ("so !", "why <call>", calls, END)


def test_a_registered_name_is_loaded_and_another_refused() -> None:
    registry = {"think": "tests.support.answer_parsers:ThinkParser"}
    assert parser_class(registry, "think") is ThinkParser
    with pytest.raises(StartupError, match=r"thunk.*think"):
        parser_class(registry, "thunk")
