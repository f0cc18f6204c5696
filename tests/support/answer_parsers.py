"""Two small formats for testing the code around parsers: <think>…</think> before the answer, <call>name …</call>."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish, Reasoning, ToolCall
from gateway.answers.parser import AnswerParser


def may_begin(text: str, marker: str) -> int:
    """How many characters at the text's end may be the beginning of a marker."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if marker.startswith(text[-n:])), 0)


class ThinkParser(AnswerParser):
    """Text between <think> and </think> is reasoning, each time."""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._held = ""
        self._thinks = False

    def parse(self, text: str) -> Sequence[Delta]:
        found: list[Delta] = []
        text = self._held + text
        while (marker := self._marker()) in text:
            before, _, text = text.partition(marker)
            found += self._spoken(before)
            self._thinks = not self._thinks
        kept = may_begin(text, self._marker())
        self._held = text[len(text) - kept :]
        return [*found, *self._spoken(text[: len(text) - kept])]

    def end(self, finish: Finish) -> Sequence[Delta]:
        return [*self._spoken(self._held), finish]

    def _marker(self) -> str:
        return "</think>" if self._thinks else "<think>"

    def _spoken(self, text: str) -> Sequence[Delta]:
        return [Reasoning(text) if self._thinks else Content(text)] if text else []


class CallParser(AnswerParser):
    """<call>name arguments</call>: emitted as soon as it is complete; an incomplete one stays content."""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._held = ""
        self._calls = 0

    def parse(self, text: str) -> Sequence[Delta]:
        found: list[Delta] = []
        text = self._held + text
        while "<call>" in text and "</call>" in text[text.index("<call>") :]:
            before, _, rest = text.partition("<call>")
            call, _, text = rest.partition("</call>")
            name, _, arguments = call.partition(" ")
            found += [Content(before)] if before else []
            found.append(ToolCall(self._calls, arguments, f"call-{self._calls}", name))
            self._calls += 1
        begun = text.index("<call>") if "<call>" in text else len(text) - may_begin(text, "<call>")
        self._held = text[begun:]
        return [*found, Content(text[:begun])] if begun else found

    def end(self, finish: Finish) -> Sequence[Delta]:
        return [Content(self._held), finish] if self._held else [finish]
