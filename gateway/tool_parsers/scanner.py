"""The text of an answer as parsers read it: once from front to back, waiting for text that has not arrived.

Parsers are generators that yield where they need more text (`Steps`), so that they read like a grammar. Text once taken
is never examined again, and the unread rest is shorter than the longest word searched for: the work is linear in the
length of the text, however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from gateway.answers.markers import Markers

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], object]

SPACE = " \t\r\n"
_SPACE = re.compile(rf"[{SPACE}]*+")
# Names end at white space, and at characters that begin a special token or arguments.
_NAME = re.compile(r"[^\s<>{}()\[\]\"'=,;]*+")


class NotACallError(Exception):
    """What looked like a call, or the rest of one, is not."""


class EndOfTextError(Exception):
    """The text ended where more was needed."""


class Scanner:
    """The unread text, and the text taken since `hold`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def feed(self, text: str) -> None:
        """Adds text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Marks the end of the text."""
        self._ended = True

    @property
    def holds(self) -> bool:
        """Whether taken text is being held."""
        return self._held is not None

    def hold(self, taken: str = "") -> None:
        """Holds the text taken from now on, preceded by `taken`; text already held stays held."""
        if self._held is None:
            self._held = []
        self._held.append(taken)

    def let_go(self) -> None:
        """Forgets the held text, because it has become part of a call."""
        self._held = None

    def release(self) -> str:
        """Returns and forgets the held text, because it is not part of a call."""
        held, self._held = self._held, None
        return "".join(held or ())

    def rest(self) -> str:
        """Returns the held and unread text, at the end."""
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
        """Takes the next `count` characters, which must be available."""
        return self._take_to(self._at + count)

    def _take_to(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if self._held is not None:
            self._held.append(taken)
        return taken

    def peek(self) -> Steps[str]:
        """Returns the next character without taking it."""
        while self._at == len(self._text):
            yield from self.more()
        return self._text[self._at]

    def peek_past_space(self) -> Steps[str]:
        """Takes white space, and returns the next character without taking it."""
        if self._at < len(self._text) and (character := self._text[self._at]) not in SPACE:
            return character
        return (yield from self.pour(_SPACE, lambda space: None))

    def run(self, pattern: re.Pattern[str]) -> str:
        """Takes the available characters that match. The pattern must also match the empty string."""
        found = pattern.match(self._text, self._at)
        return self._take_to(found.end()) if found else ""

    def pour(self, pattern: re.Pattern[str], sink: Sink) -> Steps[str]:
        """Takes all matching characters, piece by piece; returns the one after them without taking it."""
        while True:
            if taken := self.run(pattern):
                sink(taken)
            if self._at < len(self._text):
                return self._text[self._at]
            yield from self.more()

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Takes and returns all matching characters."""
        pieces: list[str] = []
        yield from self.pour(pattern, pieces.append)
        return "".join(pieces)

    def name(self) -> Steps[str]:
        """Takes white space and the name after it; empty if there is none."""
        yield from self.peek_past_space()
        return (yield from self.word(_NAME))

    def accept(self, *words: str) -> Steps[str]:
        """Takes the one of the words that comes next; returns "" if none does. No word may be a prefix of another."""
        longest = max(map(len, words), default=0)
        while True:
            for word in words:
                if self._text.startswith(word, self._at):
                    return self.take(len(word))
            rest = self._text[self._at : self._at + longest]
            if len(rest) == longest or not any(len(word) > len(rest) and word.startswith(rest) for word in words):
                return ""
            yield from self.more()

    def expect(self, *words: str) -> Steps[str]:
        """Takes one of the words, as `accept`.

        Raises:
            NotACallError: none of them comes next.
        """
        word = yield from self.accept(*words)
        if not word:
            raise NotACallError
        return word

    def until(self, markers: Markers, sink: Sink) -> Steps[str]:
        """Takes all text before the first marker, piece by piece, and the marker; returns the marker."""
        while True:
            place, marker = markers.find(self._text, self._at)
            if place > self._at:
                sink(self._take_to(place))
            if marker:
                return self.take(len(marker))
            yield from self.more()

    def scan(self, scanner: Callable[[str, int], int], sink: Sink) -> None:
        """Passes on the available text as far as `scanner`, called with (text, start), says."""
        if (end := scanner(self._text, self._at)) > self._at:
            sink(self._take_to(end))
