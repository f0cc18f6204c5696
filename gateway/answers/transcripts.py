"""Parsers that find the words that were spoken in what models for speech write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish
from gateway.answers.parser import AnswerParser

_MOST_HEAD_CHARACTERS = 100  # before the mark; more text than that is the transcript itself
_OPENINGS = (
    "The spoken content of the audio is", "The transcription of the audio is", "The content of the input audio is",
)  # fmt: skip
_QUOTES = ("'", '"')
_TIME = re.compile(r"<\|\d{1,5}\.\d{1,3}\|>")
_BEGUN_TIME = re.compile(r"<(\|(\d{1,5}(\.(\d{1,3}\|?)?)?)?)?\Z")


def _told(text: str) -> Sequence[Delta]:
    return [Content(text)] if text else []


class TextAfterMark(AnswerParser):
    """Drops the language that Qwen3-ASR writes first: `language English<asr_text>Hello.`"""

    mark: ClassVar[str] = "<asr_text>"
    special_tokens = (mark,)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._head: str | None = ""  # text held back; None once the transcript has begun

    def parse(self, text: str) -> Sequence[Delta]:
        if self._head is None:
            return _told(text)
        self._head += text
        if 0 <= (place := self._head.find(self.mark)) <= _MOST_HEAD_CHARACTERS:
            transcript, self._head = self._head[place + len(self.mark) :], None
            return _told(transcript)
        return self._begin() if len(self._head) >= _MOST_HEAD_CHARACTERS + len(self.mark) else ()

    def end(self, finish: Finish) -> Sequence[Delta]:
        return [*self._begin(), finish]

    def _begin(self) -> Sequence[Delta]:
        """Returns the text held back, which had no mark: it is the transcript."""
        head, self._head = self._head, None
        return _told(head or "")


class TextInQuotes(AnswerParser):
    """Drops the sentence around the transcript: `The spoken content of the audio is "Hello.".`"""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._held = ""
        self._is_open = False  # whether the sentence has begun, and what it quotes
        self._is_plain = False  # whether there is no such sentence
        self._quote = ""

    def parse(self, text: str) -> Sequence[Delta]:
        self._held += text
        if not self._is_open and not self._is_plain:
            self._look()
        if self._is_plain:
            return self._told_up_to(len(self._held))
        return self._told_up_to(self._certain()) if self._is_open else ()

    def end(self, finish: Finish) -> Sequence[Delta]:
        return [*self._told_up_to(self._certain() if self._is_open else len(self._held)), finish]

    def _look(self) -> None:
        """Finds out whether the answer begins with the sentence."""
        text = self._held.lstrip()
        opening = next((each for each in _OPENINGS if text.startswith(each)), "")
        if not opening:
            self._is_plain = not any(each.startswith(text) for each in _OPENINGS)
            return
        text = text.removeprefix(opening).lstrip()
        if text:
            self._is_open, self._quote = True, text[0] if text[0] in _QUOTES else ""
            self._held = text.removeprefix(self._quote)

    def _certain(self) -> int:
        """Returns the length of the text held that is not the sentence's end: a quotation mark, and a full stop."""
        rest = self._held.rstrip().removesuffix(".").rstrip()
        if not self._quote:
            return len(rest)
        return len(rest) - 1 if rest.endswith(self._quote) else len(self._held)

    def _told_up_to(self, end: int) -> Sequence[Delta]:
        text, self._held = self._held[:end], self._held[end:]
        return _told(text)


class TextWithoutTimes(AnswerParser):
    """Drops the times that Whisper may write unasked: `<|0.00|> Hello.<|2.50|>`"""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._held = ""  # may become a time

    def parse(self, text: str) -> Sequence[Delta]:
        *before, last = _TIME.split(self._held + text)
        begun = _BEGUN_TIME.search(last)
        self._held = begun[0] if begun else ""
        return _told("".join(before) + last.removesuffix(self._held))

    def end(self, finish: Finish) -> Sequence[Delta]:
        return [*_told(self._held), finish]
