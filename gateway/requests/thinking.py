"""What a request's prompt says of the thinking of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.reasoning_parsers.base import ReasoningParser
from quire.reasoning import ReasoningMarks, ReasoningTracker, StretchCounter

_MOST_BLANKS = 8  # behind a mark at a prompt's end


@dataclass(frozen=True)
class MarkTokens:
    """A format's marks in the tokens of a vocabulary."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    stretch_end: tuple[int, ...]  # none where thinking is one stretch
    blanks: tuple[int, ...]  # tokens of which each is a line break, or several


@dataclass(frozen=True)
class Thinking:
    """How the answers to a prompt think.

    Attributes:
        is_open: they begin with it, whether or not they say so.
        marks: for services that read tokens; none where nothing is thought.
        stretches: the marks of stretches, where there may be several.
    """

    is_open: bool
    marks: ReasoningMarks | None = None
    stretches: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def counters(self, choices: int) -> Sequence[ReasoningTracker | StretchCounter]:
        """One for each choice, that counts its tokens of thinking; none where there are none."""
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
    """How answers to a rendered prompt think, which may end with a start mark, or with an end mark.

    Args:
        continued: the texts of the answer that the prompt ends within, if it is to be gone on with. Marks count in them
            and right before them: what others have said in the conversation may speak of marks too.
        may_open: where the prompt has not opened the thinking, the answer may, if its model is one that can do without.
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
    marks = ReasoningMarks(tokens.start, tokens.end, opened, opened or parser.is_optional, tokens.blanks)
    stretches = (tokens.start, tokens.stretch_end) if tokens.stretch_end else None
    return Thinking(opened or not parser.is_optional, marks, stretches)
