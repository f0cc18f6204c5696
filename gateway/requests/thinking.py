"""Determines from a request's prompt how its answers reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.reasoning_parsers.base import ReasoningParser
from quire.reasoning import ReasoningMarks, ReasoningTracker, StretchCounter

_MOST_BLANKS = 8  # that may follow a mark at the prompt's end


@dataclass(frozen=True)
class MarkTokens:
    """Token ids of a reasoning format's marks."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    stretch_end: tuple[int, ...]  # empty if the format has a single stretch of reasoning
    blanks: tuple[int, ...]  # tokens consisting of line breaks
    closing: tuple[int, ...] = ()  # what is forced before the end mark once a budget is used up


@dataclass(frozen=True)
class Thinking:
    """How the answers to a prompt reason.

    Attributes:
        is_open: whether they begin inside the reasoning, with or without a start mark.
        marks: for services that read tokens; None if there is no reasoning.
        stretches: start and end marks of a stretch, if there may be several stretches.
    """

    is_open: bool
    marks: ReasoningMarks | None = None
    stretches: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def counters(self, choices: int) -> Sequence[ReasoningTracker | StretchCounter]:
        """Returns one counter of reasoning tokens per choice; empty if there is no reasoning."""
        if self.stretches:
            return [StretchCounter(*self.stretches) for _ in range(choices)]
        return [ReasoningTracker(self.marks) for _ in range(choices)] if self.marks else ()


def thinking_after(
    prompt: str,
    parser: type[ReasoningParser],
    tokens: MarkTokens,
    *,
    continued: Sequence[str] = (),
    may_open: bool = True,
) -> Thinking:
    """Determines how answers to a rendered prompt reason; the prompt may end with a start mark or an end mark.

    Args:
        continued: the texts of the final answer in the prompt, if it is to be continued. Marks count only in them and
            right before them, because earlier messages may mention marks too.
        may_open: whether the answer may open the reasoning itself if the prompt has not, with models that can do
            without reasoning.
    """
    for text in reversed(continued):
        prompt = prompt.rstrip().removesuffix(text.strip())
    tail = prompt[-_MOST_BLANKS - max(len(parser.start_mark), len(parser.end_mark)) :].rstrip()
    opened, closed = tail.endswith(parser.start_mark.rstrip()), tail.endswith(parser.end_mark.rstrip())
    said = "".join(continued)
    if said.lstrip().startswith(parser.start_mark) or parser.end_mark in said:
        closed = parser.end_mark in said
        opened = not closed
    if closed or (parser.is_optional and not (opened or may_open)):
        return Thinking(is_open=False)
    optional = opened or parser.is_optional
    marks = ReasoningMarks(tokens.start, tokens.end, opened, optional, tokens.blanks, tokens.closing)
    stretches = (tokens.start, tokens.stretch_end) if tokens.stretch_end else None
    return Thinking(opened or not parser.is_optional, marks, stretches)
