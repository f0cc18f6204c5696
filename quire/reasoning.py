"""Tracks where a model's reasoning begins and ends in its tokens, the same way in all services.

The gateway counts the reasoning tokens, the tokenizer service matches no stop string in them, and engines apply
constraints only after them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.bounds import check_token_ids
from quire.errors import InvalidRequest

MAX_MARK_TOKENS = 16
MAX_CLOSING_TOKENS = 256
# Variables of chat templates: how much to think, and whether, in templates that have such a switch. Those of DeepSeek,
# Granite and Kimi use the second one.
EFFORT = "reasoning_effort"
THINKING_SWITCHES = ("enable_thinking", "thinking")


class ReasoningMarks(msgspec.Struct, frozen=True, array_like=True):
    """The token sequences that open and close the reasoning; see the wire's message of that name."""

    start_token_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()
    is_open: bool = False  # whether the prompt has opened it already
    is_optional: bool = False  # reasoning only after a start mark; otherwise all up to the end mark is reasoning
    blank_token_ids: tuple[int, ...] = ()  # line breaks, which surround the marks and belong to neither part
    closing_token_ids: tuple[int, ...] = ()  # forced before the end mark once a thinking budget is used up

    def check(self, parameter: str, vocab_size: int = 2**32) -> None:
        """Checks the marks.

        Raises:
            InvalidRequest: a mark has too many tokens, a required one has none, or a token is not in the vocabulary.
        """
        for name, needed, most in (
            ("start_token_ids", self.is_optional, MAX_MARK_TOKENS),
            ("end_token_ids", True, MAX_MARK_TOKENS),
            ("blank_token_ids", False, MAX_MARK_TOKENS),
            ("closing_token_ids", False, MAX_CLOSING_TOKENS),
        ):
            token_ids = getattr(self, name)
            check_token_ids(f"{parameter}.{name}", token_ids, vocab_size)
            count = len(token_ids)
            if not needed <= count <= most:
                raise InvalidRequest(
                    f"{parameter}.{name} has {count} tokens; it needs {int(needed)} to {most}.",
                    parameter=parameter,
                )


class ReasoningTracker:
    """Follows one sequence through its reasoning, token by token.

    Contract: the state does not depend on whether tokens come one by one or many at a time. An output opens its
    reasoning at its beginning or not at all, and what comes after the end mark is never reasoning again.

    Attributes:
        thinks: whether the next token belongs to the reasoning, or to the mark that ends it.
        answers: whether a token of the answer has come: neither reasoning, nor a mark, nor a blank before or after one.
        num_tokens: reasoning tokens so far, without the marks.
    """

    def __init__(self, marks: ReasoningMarks, *, after_blanks: bool = True) -> None:
        """
        Args:
            marks: marks that passed `check`.
            after_blanks: whether a start mark may have blanks before it. If not, a blank at the beginning means that no
                start mark comes.
        """
        self._marks = marks
        self._passed_blanks = marks.blank_token_ids if after_blanks else ()
        self._opening: tuple[int, ...] = ()  # the part of a start mark seen so far, while it may still complete
        self._may_open = bool(marks.start_token_ids)
        self._recent: tuple[int, ...] = ()  # the last reasoning tokens, as many as the end mark has
        self.thinks = marks.is_open or not marks.is_optional
        self.answers = False
        self.num_tokens = 0

    @property
    def opening_token_id(self) -> int | None:
        """The token that would begin or continue the start mark; None if no start mark can come any more."""
        return self._marks.start_token_ids[len(self._opening)] if self._may_open else None

    @property
    def is_opening(self) -> bool:
        """Whether the output is inside a start mark."""
        return bool(self._opening) and self._may_open

    def advance(self, token_ids: Iterable[int]) -> None:
        """Processes further tokens."""
        for token_id in token_ids:
            if self.answers:
                return
            self._advance(token_id)

    def _advance(self, token_id: int) -> None:
        if self._may_open:
            self._advance_opening(token_id)
        elif self.thinks:
            self._think(token_id)
        elif token_id not in self._marks.blank_token_ids:
            self.answers = True

    def _advance_opening(self, token_id: int) -> None:
        """Handles a token at the output's beginning, where a start mark may come even if the prompt has one."""
        opening = (*self._opening, token_id)
        start = self._marks.start_token_ids
        if opening == start:
            self._may_open, self.thinks, self.num_tokens, self._recent = False, True, 0, ()
        elif start[: len(opening)] == opening:
            self._opening = opening
        elif self._opening or token_id not in self._passed_blanks:
            self._may_open = False
            self.answers = not self.thinks
            self.advance(opening)
        elif self.thinks:
            self._think(token_id)

    def _think(self, token_id: int) -> None:
        end = self._marks.end_token_ids
        self.num_tokens += 1
        self._recent = (*self._recent, token_id)[-len(end) :]
        if self._recent == end:
            self.num_tokens -= len(end)
            self.thinks = False


class StretchCounter:
    """Counts the tokens between marks that may recur, like the messages of a channel.

    Attributes:
        num_tokens: number of tokens so far, without the marks.
    """

    def __init__(self, start_token_ids: tuple[int, ...], end_token_ids: tuple[int, ...]) -> None:
        self._marks = (start_token_ids, end_token_ids)
        self._inside = False
        self._recent: tuple[int, ...] = ()
        self.num_tokens = 0

    def advance(self, token_ids: Iterable[int]) -> None:
        """Processes further tokens."""
        for token_id in token_ids:
            mark = self._marks[self._inside]
            self.num_tokens += self._inside
            self._recent = (*self._recent, token_id)[-len(mark) :]
            if self._recent == mark:
                self.num_tokens -= len(mark) * self._inside
                self._inside, self._recent = not self._inside, ()
