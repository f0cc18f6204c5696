"""What was said, in what models for speech write: however the text is cut."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gateway.answers.context import NO_CONTEXT
from gateway.answers.deltas import Content, Finish, FinishReason, Reasoning, content_of
from gateway.answers.parser import AnswerParser
from gateway.answers.transcripts import TextAfterMark, TextInQuotes, TextWithoutTimes

END = Finish(FinishReason.STOP)
OPENING = "The spoken content of the audio is"


def parsed(kind: type[AnswerParser], pieces: Iterable[str]) -> str:
    parser = kind(NO_CONTEXT)
    found = [delta for piece in pieces for delta in parser.feed(Content(piece))]
    found += parser.feed(END)
    assert found[-1] == END and all(isinstance(delta, Content) and delta.text for delta in found[:-1])
    return content_of(found)


def cuts(text: str) -> list[list[str]]:
    """The text whole, by characters, and in two pieces at every place."""
    return [[text], list(text), *([text[:place], text[place:]] for place in range(1, len(text)))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("language English<asr_text>Hello.", "Hello."), ("language None<asr_text>", ""), ("<asr_text>a", "a"),
        ("Hello.", "Hello."), ("", ""), ("language English<asr_", "language English<asr_"),
        ("language a<asr_text>b<asr_text>c", "b<asr_text>c"), ("x" * 300, "x" * 300),
    ],
)  # fmt: skip
def test_the_text_after_the_mark(text: str, said: str) -> None:
    assert {parsed(TextAfterMark, pieces) for pieces in cuts(text)} == {said}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{OPENING} "Hello.".', "Hello."), (f"{OPENING} 'It's so.'", "It's so."), (f"{OPENING} Hello.", "Hello"),
        (f' {OPENING}\n"a" . ', "a"), ('The transcription of the audio is "".', ""), (f'{OPENING} "cut', "cut"),
        (f'{OPENING} "Cut off.', "Cut off."), (f'{OPENING} "He said "a". Then "b".".', 'He said "a". Then "b".'),
        (f"{OPENING} 'a\".", 'a".'), ('The content of the input audio is "a".', "a"), ("Hello.", "Hello."),
        ('"Hello."', '"Hello."'), (OPENING, OPENING), (OPENING[:-5], OPENING[:-5]), ("The cat.", "The cat."), ("", ""),
    ],
)  # fmt: skip
def test_the_text_in_quotes(text: str, said: str) -> None:
    assert {parsed(TextInQuotes, pieces) for pieces in cuts(text)} == {said}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<|0.00|> Hello.<|2.50|><|2.50|> So", " Hello. So"), ("a < b <| c <|1| d <|1.0|", "a < b <| c <|1| d <|1.0|"),
        ("<|1<|0.00|>.00|><", "<|1.00|><"), ("<|en|>a<|12345.123|>", "<|en|>a"), ("<|123456.00|>", "<|123456.00|>"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_text_without_times(text: str, said: str) -> None:
    assert {parsed(TextWithoutTimes, pieces) for pieces in cuts(text)} == {said}


def test_text_comes_as_soon_as_it_is_certain() -> None:
    marked, quoted = TextAfterMark(NO_CONTEXT), TextInQuotes(NO_CONTEXT)
    timed = TextWithoutTimes(NO_CONTEXT)
    assert timed.feed(Content("a <")) == [Content("a ")]
    assert timed.feed(Content("b <|0.00|> c")) == [Content("<b  c")]
    assert not marked.feed(Content("language English<asr_"))
    assert marked.feed(Content("text>He")) == [Content("He")]
    assert marked.feed(Content("llo")) == [Content("llo")]
    assert quoted.feed(Content(f'{OPENING} "He')) == [Content("He")]
    assert quoted.feed(Content('llo".')) == [Content("llo")]
    assert quoted.feed(Content(' "So".')) == [Content('". "So')]


@pytest.mark.parametrize("kind", [TextAfterMark, TextInQuotes, TextWithoutTimes])
def test_what_others_have_found_passes(kind: type[AnswerParser]) -> None:
    assert kind(NO_CONTEXT).feed(Reasoning("a")) == (Reasoning("a"),)
