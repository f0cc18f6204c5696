"""Base classes of the tool call formats."""

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
    """The text around the arguments of calls: `before`, then the calls with `separator` between them, then `after`."""

    begin: str  # of a call, up to its arguments
    end: str
    before: str = ""
    separator: str = ""
    after: str = ""


def new_call_id() -> str:
    """Returns a new call id of the usual form."""
    return f"call_{secrets.token_hex(12)}"


class ToolParser(AnswerParser):
    """A tool call format."""

    # Words that begin a call or a row of calls.
    begins: ClassVar[tuple[str, ...]] = ()
    # Characters that begin calls without one of these words, at the beginning of the text only.
    bare: ClassVar[str] = ""
    # Words that come after a call, and are dropped.
    ends: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def syntax(cls, name: str) -> CallSyntax | None:
        """Returns how a call of a tool is written, for grammars; None if unknown."""
        return None

    @classmethod
    def other_syntax(cls, name: str) -> CallSyntax | None:
        """Returns how other models of the family write a call; a model then chooses its own way. None if alike."""
        return None

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any] | None:
        """Returns how a call's arguments are written, as a structural tag element; None if they are a JSON object."""
        return None


class MarkedToolParser(ToolParser):
    """A format in which certain words begin calls; a generator reads what follows them.

    A call is passed on as the model wrote it, whether or not a tool of that name was offered. If something begins like
    a call but is not one, the text up to the point where that became clear is content. If a call breaks off later, the
    part already sent remains.
    """

    # Words that are dropped anywhere.
    dropped: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self.text = Scanner()
        self.found = Findings()
        self.unclosed = False  # whether a call has begun whose end has not come
        self._outside = Markers(*self.begins, *self.dropped)
        self._after = Markers(*self.begins, *self.dropped, *self.ends)
        self._machine = self._read()
        next(self._machine)

    @abstractmethod
    def read_calls(self, marker: str) -> Steps[None]:
        """Reads the calls after one of `begins`, or after "" in front of a `bare` character.

        Raises:
            NotACallError: what follows is not a call, or not a valid part of one. The held text becomes content.
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
        """Begins a call, which is now certain.

        Raises:
            NotACallError: it has no name.
        """
        if not name:
            raise NotACallError
        self.text.let_go()
        self.unclosed = True
        self.found.call(name, call_id or self.new_id(name))

    def new_id(self, name: str) -> str:
        """Returns an id for a call."""
        return new_call_id()

    def close(self) -> Steps[None]:
        """Reads the end of the calls, if it comes next."""
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
