"""Reasoning in a channel of its own, and the answer in another one."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta
from gateway.answers.markers import Markers
from gateway.reasoning_parsers.base import MarkedParser


class KimiChannels(MarkedParser):
    """Kimi K3: `<|open|>think<|sep|>…<|close|>think<|sep|>`, then a channel with text, one with tool calls, or both.

    The prompt may have opened either the reasoning or the text. The tags around the text are removed, and those at the
    end of the message too; the calls are left to the tool parser.
    """

    start_mark = "<|open|>think<|sep|>"
    end_mark = "<|close|>think<|sep|>"
    answer_starts = ("<|open|>response<|sep|>", "<|open|>tools<|sep|>")
    special_tokens = ("<|open|>", "<|close|>", "<|sep|>")

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._waiting = ""  # text of the answer that may be the beginning of a tag
        self._dropped = Markers(self.answer_starts[0], "<|close|>response<|sep|>", "<|close|>message<|sep|>")

    def parse_answer(self, text: str) -> Sequence[Delta]:
        text, at, kept = self._waiting + text, 0, list[str]()
        while True:
            place, tag = self._dropped.find(text, at)
            kept.append(text[at:place])
            if not tag:
                break
            at = place + len(tag)
        self._waiting = text[place:]
        found = "".join(kept)
        return [Content(found)] if found else []

    def end_answer(self, text: str) -> Sequence[Delta]:
        found = self.parse_answer(text)
        return [*found, Content(self._waiting)] if self._waiting else found
