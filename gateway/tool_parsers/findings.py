"""Collects what a tool parser has found since it was last asked, merged into as few deltas as possible."""

from __future__ import annotations

import msgspec

from gateway.answers.deltas import Content, Delta, ToolCall
from gateway.tool_parsers.scanner import SPACE


class Findings:
    """Content and calls, in order. White space next to a call is dropped; white space between other text is content."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._deltas: list[Delta] = []
        self._call: ToolCall | None = None  # the call that the pieces belong to; None means content
        self._pieces: list[str] = []
        self._space: list[str] = []  # after the content so far
        self._beside_a_call = False

    def content(self, text: str) -> None:
        """Adds text outside calls."""
        body = text.rstrip(SPACE)
        if body:
            if self._call is not None:
                self._turn_to(None)
            self._pieces += (*self._space, body)
            self._space.clear()
            self._beside_a_call = False
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def call(self, name: str, call_id: str) -> None:
        """Begins the next call."""
        self._space.clear()
        self._beside_a_call = True
        self._turn_to(ToolCall(self.num_calls, "", call_id, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Adds a piece of the last call's arguments."""
        if text:
            if self._call is None:
                self._turn_to(ToolCall(self.num_calls - 1))
            self._pieces.append(text)

    def take(self) -> list[Delta]:
        """Returns the deltas that are certain."""
        if self._pieces or self._call is not None:
            self._turn_to(None)
        taken, self._deltas = self._deltas, []
        return taken

    def take_all(self) -> list[Delta]:
        """Returns all remaining deltas, at the end of the text."""
        if not self._beside_a_call:
            if self._call is not None:
                self._turn_to(None)
            self._pieces += self._space
        return self.take()

    def _turn_to(self, call: ToolCall | None) -> None:
        text = "".join(self._pieces)
        if self._call is not None:
            self._deltas.append(msgspec.structs.replace(self._call, arguments=text))
        elif text:
            self._deltas.append(Content(text))
        self._call = call
        self._pieces.clear()
