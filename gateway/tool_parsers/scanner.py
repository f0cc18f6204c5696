"""The text of an answer as a parser reads it: from the front, once, waiting where it has not come yet.

Parsers are generators that stop where they need more text (`Steps`), so that they read like a grammar. What is taken is
never looked at again, and what is left unread is shorter than the longest word that is looked for: the work is linear
in the text, however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from gateway.answers.markers import Markers

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], object]

_SPACE = re.compile(r"[ \t\r\n]*+")
# Names end at white space and at what begins a token or arguments.
_NAME = re.compile(r"[^\s<>{}()\[\]\"'=,;]*+")


class NotACallError(Exception):
    """What looked like a call, or like the rest of one, is none."""


class EndOfTextError(Exception):
    """The text has ended where more was needed."""


class Scanner:
    """The unread text, and what was taken since `hold`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def feed(self, text: str) -> None:
        """More has come."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more comes."""
        self._ended = True

    @property
    def holds(self) -> bool:
        """Whether what is taken is kept."""
        return self._held is not None

    def hold(self, taken: str = "") -> None:
        """Keeps what is taken from now on, and what was just taken; what it keeps already, it goes on keeping."""
        if self._held is None:
            self._held = []
        self._held.append(taken)

    def let_go(self) -> None:
        """Forgets what was kept: it has become something."""
        self._held = None

    def release(self) -> str:
        """What was kept: it has become nothing."""
        held, self._held = self._held, None
        return "".join(held or ())

    def rest(self) -> str:
        """What was kept and what is unread, at the end."""
        return self.release() + self._text[self._at :]

    def more(self) -> Steps[None]:
        """Waits for more text.

        Raises:
            EndOfTextError: there is none.
        """
        if self._ended:
            raise EndOfTextError
        yield

    def take(self, count: int) -> str:
        """The next characters, which are there."""
        return self._take_to(self._at + count)

    def _take_to(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if self._held is not None:
            self._held.append(taken)
        return taken

    def peek(self) -> Steps[str]:
        """The next character, which stays."""
        while self._at == len(self._text):
            yield from self.more()
        return self._text[self._at]

    def peek_past_space(self) -> Steps[str]:
        """The next character that is no white space, which is taken."""
        return (yield from self.pour(_SPACE, lambda space: None))

    def run(self, pattern: re.Pattern[str]) -> str:
        """The next characters that match, as far as they are there. The pattern may match nothing and never fails."""
        found = pattern.match(self._text, self._at)
        return self._take_to(found.end()) if found else ""

    def pour(self, pattern: re.Pattern[str], sink: Sink) -> Steps[str]:
        """All next characters that match, piece by piece; the one after them, which stays."""
        while True:
            if taken := self.run(pattern):
                sink(taken)
            if self._at < len(self._text):
                return self._text[self._at]
            yield from self.more()

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """All next characters that match."""
        pieces: list[str] = []
        yield from self.pour(pattern, pieces.append)
        return "".join(pieces)

    def name(self) -> Steps[str]:
        """The name that comes next, past white space; nothing where none does."""
        yield from self.peek_past_space()
        return (yield from self.word(_NAME))

    def accept(self, *words: str) -> Steps[str]:
        """Takes that of some words which comes next, and nothing if none does. None may begin another."""
        longest = max(map(len, words), default=0)
        while True:
            for word in words:
                if self._text.startswith(word, self._at):
                    return self.take(len(word))
            rest = self._text[self._at : self._at + longest]
            if not any(len(word) > len(rest) and word.startswith(rest) for word in words):
                return ""
            yield from self.more()

    def expect(self, *words: str) -> Steps[str]:
        """As `accept`, for what must come.

        Raises:
            NotACallError: none of them comes.
        """
        word = yield from self.accept(*words)
        if not word:
            raise NotACallError
        return word

    def until(self, markers: Markers, sink: Sink) -> Steps[str]:
        """Everything before the first of some markers, piece by piece; and the marker, which is taken."""
        while True:
            place, marker = markers.find(self._text, self._at)
            if place > self._at:
                sink(self._take_to(place))
            if marker:
                return self.take(len(marker))
            yield from self.more()

    def scan(self, scanner: Callable[[str, int], int], sink: Sink) -> None:
        """Hands what is there on, as far as a scanner of (text, start) says."""
        if (end := scanner(self._text, self._at)) > self._at:
            sink(self._take_to(end))
