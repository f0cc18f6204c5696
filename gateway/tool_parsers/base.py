"""What the formats of tool calls share."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.deltas import Delta, Finish
from gateway.answers.markers import Markers
from gateway.answers.parser import AnswerParser
from gateway.tool_parsers.findings import Findings
from gateway.tool_parsers.scanner import EndOfTextError, NotACallError, Scanner, Steps


@dataclass(frozen=True)
class CallSyntax:
    """How calls are written around their arguments: `before`, the calls with a separator between them, `after`."""

    begin: str  # of a call, up to its arguments
    end: str
    before: str = ""
    separator: str = ""
    after: str = ""


def new_call_id() -> str:
    """An id for a call, of the usual form."""
    return f"call_{secrets.token_hex(12)}"


class ToolParser(AnswerParser):
    """A format of calls."""

    # Begin a call or a row of them.
    begins: ClassVar[tuple[str, ...]] = ()
    # Characters that begin calls without such a word, at the beginning of the text.
    bare: ClassVar[str] = ""
    # Come after a call, and are dropped.
    ends: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def syntax(cls, name: str) -> CallSyntax | None:
        """How a call of a tool is written, for grammars; None where nobody has told."""
        return None

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any] | None:
        """How a call's arguments are written, as an element of a structural tag; None where they are a JSON object."""
        return None


class MarkedToolParser(ToolParser):
    """The words that begin a call, and a generator that reads it.

    A call is passed on as the model has made it, whether a tool of that name was offered or not. What was begun and is
    no call is content, from where it began to where that was clear; a call that breaks off later keeps what was sent.
    """

    # Are dropped wherever they stand.
    dropped: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self.text = Scanner()
        self.found = Findings()
        self.unclosed = False  # a call was begun whose end has not come
        self._outside = Markers(*self.begins, *self.dropped)
        self._after = Markers(*self.begins, *self.dropped, *self.ends)
        self._machine = self._read()
        next(self._machine)

    @abstractmethod
    def read_calls(self, marker: str) -> Steps[None]:
        """Reads what comes after one of `begins`, or after nothing in front of `bare`.

        Raises:
            NotACallError: what comes next is no call or no part of one. What was held is content.
        """

    def parse(self, text: str) -> Sequence[Delta]:
        self.text.feed(text)
        next(self._machine)
        return self.found.take()

    def end(self, finish: Finish) -> Sequence[Delta]:
        self.text.end()
        for _ in self._machine:
            raise RuntimeError("a parser waits for text after its end")
        return (*self.found.take_all(), finish)

    def begin_call(self, name: str, call_id: str = "") -> None:
        """A call is certain.

        Raises:
            NotACallError: it has no name.
        """
        if not name:
            raise NotACallError
        self.text.let_go()
        self.unclosed = True
        self.found.call(name, call_id or self.new_id(name))

    def new_id(self, name: str) -> str:
        """An id for a call."""
        return new_call_id()

    def close(self) -> Steps[None]:
        """Takes the calls' end, if it comes next."""
        self.text.hold()
        yield from self.text.peek_past_space()
        if (yield from self.text.accept(*self.ends)):
            self.text.let_go()
            self.unclosed = False
        else:
            self.found.content(self.text.release())

    def _read(self) -> Steps[None]:
        try:
            yield from self._read_bare()
            while True:
                marker = yield from self.text.until(self._after if self.unclosed else self._outside, self.found.content)
                if marker in self.begins:
                    self.text.hold(marker)
                    yield from self._try_calls(marker)
                elif marker in self.ends:
                    self.unclosed = False
        except EndOfTextError:
            self.found.content(self.text.rest())

    def _read_bare(self) -> Steps[None]:
        self.text.hold()
        if (yield from self.text.peek_past_space()) in self.bare:
            yield from self._try_calls("")
        else:
            self.found.content(self.text.release())

    def _try_calls(self, marker: str) -> Steps[None]:
        try:
            yield from self.read_calls(marker)
        except NotACallError:
            self.found.content(self.text.release())
