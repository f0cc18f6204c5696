"""What a tool parser has found since it was last asked, put together into as few deltas as it takes."""

from __future__ import annotations

import msgspec

from gateway.answers.deltas import Content, Delta, ToolCall

_SPACE = " \t\r\n"


class Findings:
    """Content and calls, in order. White space beside a call is no content; that between two sentences is."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._deltas: list[Delta] = []
        self._call: ToolCall | None = None  # that the pieces are of; content if there is none
        self._pieces: list[str] = []
        self._space: list[str] = []  # after the content so far
        self._beside_a_call = False

    def content(self, text: str) -> None:
        """Text that is no call."""
        body = text.rstrip(_SPACE)
        if body:
            if self._call is not None:
                self._turn_to(None)
            self._pieces += (*self._space, body)
            self._space.clear()
            self._beside_a_call = False
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def call(self, name: str, call_id: str) -> None:
        """A further call begins."""
        self._space.clear()
        self._beside_a_call = True
        self._turn_to(ToolCall(self.num_calls, "", call_id, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """A piece of the last call's arguments."""
        if text:
            if self._call is None:
                self._turn_to(ToolCall(self.num_calls - 1))
            self._pieces.append(text)

    def take(self) -> list[Delta]:
        """What is certain."""
        self._turn_to(None)
        taken, self._deltas = self._deltas, []
        return taken

    def take_all(self) -> list[Delta]:
        """What is certain now that the text has ended."""
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
