"""One sequence and its grammar, which begins where the thinking ends."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.reasoning import ReasoningMarks, ReasoningTracker
from quire.structured.base import Matcher

logger = logging.getLogger(__name__)

Row = npt.NDArray[np.int32]

# Line breaks that may come between the thinking and the answer, and are no part of it, nor of the grammar.
_MOST_BLANKS = 4


@dataclass(frozen=True)
class Endings:
    """The tokens that end a sequence."""

    token_ids: frozenset[int]  # what the request lets end it: end-of-sequence tokens, and stop tokens
    eos_token_ids: frozenset[int]  # the model's, whether they end this request's sequences or not


class Follower:
    """Says which tokens a sequence may sample next, and goes on with those that it has.

    The grammar may end the sequence (`is_ended`) before a token does: where it is complete and nothing can follow.
    Where it is complete and more may follow, the endings are allowed too. They end it only there, so that what has
    finished is valid, but for stop tokens that the grammar itself allows, and stop strings: whoever asks for these
    wants to cut. While the sequence thinks all tokens are allowed but those of end-of-sequence.
    """

    def __init__(self, matcher: Matcher, endings: Endings, marks: ReasoningMarks | None = None) -> None:
        self._matcher = matcher
        self._endings = endings
        # What it does not let pass in front of a start mark could not be taken back where none comes.
        self._thinking = ReasoningTracker(marks, after_blanks=False) if marks else None
        self._blank_token_ids = marks.blank_token_ids if marks else ()
        self._opening: list[int] = []  # tokens that may turn out to begin the thinking, or the answer
        self._blanks = 0
        self.error = ""  # why the sequence cannot go on, in words for its caller
        self.is_ended = False  # the grammar is at its end

    def append(self, token_ids: Sequence[int]) -> None:
        """Goes on with the sequence's next tokens."""
        with self._noting_faults():
            self._append(token_ids)

    def _append(self, token_ids: Sequence[int]) -> None:
        answer = token_ids if self._thinking is None else self._answer_of(token_ids, self._thinking)
        answer = [token_id for token_id in answer if token_id not in self._endings.token_ids]
        if self.error or not answer:
            return
        if self._matcher.accept(answer) < len(answer):
            self.error = self._matcher.error or "a token does not fit the grammar"
        self.is_ended = not self.error and self._matcher.is_stopped

    def _answer_of(self, token_ids: Sequence[int], thinking: ReasoningTracker) -> list[int]:
        """Those of the tokens that the grammar is about."""
        found: list[int] = []
        for token_id in token_ids:
            thinking.advance((token_id,))
            if thinking.answers:
                found += [*self._opening, token_id]
                self._opening.clear()
            elif thinking.is_opening:
                self._opening.append(token_id)
            elif thinking.thinks:
                self._opening.clear()
            elif token_id in self._blank_token_ids:
                self._blanks += 1
                thinking.answers = self._blanks == _MOST_BLANKS
        return found

    def fill(self, row: Row) -> None:
        """Writes which tokens may come next, as Matcher.fill does; may find that none can: `error`, or `is_ended`."""
        with self._noting_faults():
            self._fill(row)

    @contextlib.contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """Whatever a library raises is this sequence's own fault, and must not reach a step."""
        try:
            yield
        except Exception as error:
            logger.exception("a grammar cannot be followed")
            self.error = f"its grammar cannot be followed ({type(error).__name__})"

    def _fill(self, row: Row) -> None:
        thinking = self._thinking
        if thinking is None or thinking.answers:
            self._fill_answer(row)
        elif thinking.thinks:
            row[:] = -1
            _clear(row, self._endings.eos_token_ids)
        elif thinking.is_opening:
            row[:] = 0
            self._allow_opening(row, thinking)
        else:
            self._fill_answer(row)
            self._allow_opening(row, thinking)
            if thinking.opening_token_id is None:
                _set(row, self._blank_token_ids)

    def _allow_opening(self, row: Row, thinking: ReasoningTracker) -> None:
        if thinking.opening_token_id is not None:
            self.is_ended = False
            _set(row, (thinking.opening_token_id,))

    def _fill_answer(self, row: Row) -> None:
        self._matcher.fill(row)
        if self._matcher.error:
            self.error = self._matcher.error
        elif self._matcher.is_complete:
            self.is_ended = not row.any()
            _set(row, self._endings.token_ids)
        elif not row.any():
            self.error = "no token of the model's vocabulary can go on in the grammar"

    def copy(self) -> Follower:
        """Another at the same place."""
        other = copy.copy(self)
        other._matcher, other._thinking, other._opening = (
            self._matcher.copy(),
            copy.copy(self._thinking),
            [*self._opening],
        )
        return other


def _set(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
