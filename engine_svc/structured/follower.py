"""Follows the grammar of one sequence, which applies once its reasoning has ended."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.reasoning import ReasoningMarks, ReasoningTracker
from quire.structured.base import Grammar

logger = logging.getLogger(__name__)

Row = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int32]  # [positions, words]

# Line breaks that may come between reasoning and answer without belonging to either or to the grammar.
_MOST_BLANKS = 4

# Engine thread time that looking ahead may take: initially, and for each token of the answer.
_AHEAD_SECONDS = 0.25
_AHEAD_SECONDS_A_TOKEN = 0.001


@dataclass(frozen=True)
class Endings:
    """The tokens that end a sequence."""

    token_ids: frozenset[int]  # tokens that end this request: end-of-sequence and stop tokens
    eos_token_ids: frozenset[int]  # all of the model's, even if they do not end this request


class Follower:
    """Determines which tokens a sequence may sample next, and advances with the sampled ones.

    The grammar ends the sequence (`is_ended`) when it is complete and nothing can follow. If it is complete and more
    may follow, the ending tokens are allowed too. They are allowed only there, so that a finished output is valid;
    exceptions are stop tokens that the grammar itself allows, and stop strings, with which the caller asks for a cut.
    During reasoning, all tokens except end-of-sequence are allowed.

    It can look ahead along drafted tokens, and returns to its state afterwards.
    """

    def __init__(self, grammar: Grammar, endings: Endings, marks: ReasoningMarks | None = None) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._accepted: list[int] = []  # tokens accepted by the matcher
        self._endings = endings
        self._mask_words = 0
        self._has_raised = False
        self._seconds_ahead = 0.0  # CPU time spent on looking ahead
        # No blanks are skipped before a start mark: they could not be taken back if no mark follows.
        self._thinking = ReasoningTracker(marks, after_blanks=False) if marks else None
        self._blank_token_ids = marks.blank_token_ids if marks else ()
        self._opening: list[int] = []  # tokens that may turn out to begin the reasoning or the answer
        self._blanks = 0
        self.error = ""  # why the sequence cannot continue, worded for the caller
        self.is_ended = False  # the grammar is at its end

    def append(self, token_ids: Sequence[int]) -> None:
        """Advances with the sequence's next tokens."""
        with self._noting_faults():
            self._append(token_ids)

    def _append(self, token_ids: Sequence[int]) -> None:
        answer = token_ids if self._thinking is None else self._answer_of(token_ids, self._thinking)
        answer = [token_id for token_id in answer if token_id not in self._endings.token_ids]
        if self.error or not answer:
            return
        count = self._matcher.accept(answer)
        self._accepted += answer[:count]
        if count < len(answer):
            self.error = self._matcher.error or "a token does not fit the grammar"
        self.is_ended = not self.error and self._matcher.is_stopped

    def _answer_of(self, token_ids: Sequence[int], thinking: ReasoningTracker) -> list[int]:
        """The tokens that belong to the answer, which the grammar applies to."""
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
        """Writes the mask of tokens that may come next, like Matcher.fill; sets `error` or `is_ended` if none can."""
        self._mask_words = len(row)
        with self._noting_faults():
            self._fill(row)

    def find_end(self) -> None:
        """Determines whether any token can come next, and sets `error` or `is_ended` as `fill` does."""
        self.fill(np.empty(self._mask_words, np.int32))

    def count_fitting(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens may come next, in order, without ending the sequence.

        Returns 0 once looking ahead has taken too much time.
        """
        if self._seconds_ahead > _AHEAD_SECONDS + _AHEAD_SECONDS_A_TOKEN * len(self._accepted):
            return 0
        with self._looking_ahead():
            for count, token_id in enumerate(token_ids):
                self.append((token_id,))
                if token_id in self._endings.token_ids or self.error or self.is_ended:
                    return count
        return len(token_ids)

    def fill_behind(self, token_ids: Sequence[int], rows: Rows) -> int:
        """Writes the masks of what may follow each of the tokens, all of which fit; see `fill`.

        Returns:
            The most tokens that may come: one more than these, unless the sequence ends earlier or turns out to be
            unable to continue; rows from there on are meaningless and allow everything.
        """
        with self._looking_ahead():
            for count, (token_id, row) in enumerate(zip(token_ids, rows, strict=True), 1):
                self.append((token_id,))
                self.fill(row)
                if self.error or self.is_ended:
                    rows[count - 1 :] = -1
                    return count
        return len(token_ids) + 1

    @contextlib.contextmanager
    def _looking_ahead(self) -> Iterator[None]:
        """Undoes, on exit, what was appended in the context and its effects on the state."""
        start, num_accepted = time.thread_time(), len(self._accepted)
        kept = copy.copy(self._thinking), self._opening.copy(), self._blanks, self.error, self.is_ended
        yield
        self._thinking, self._opening, self._blanks, self.error, self.is_ended = kept
        with self._noting_faults():
            self._take_back(len(self._accepted) - num_accepted)
        self._seconds_ahead += time.thread_time() - start

    def _take_back(self, count: int) -> None:
        del self._accepted[len(self._accepted) - count :]
        if not self._has_raised and not self._matcher.error:
            self._matcher.roll_back(count)
        else:  # unknown state: a draft must not end a sequence, so start over, and stop looking ahead
            self._matcher, self._has_raised, self._seconds_ahead = self._grammar.matcher(), False, math.inf
            self._matcher.accept(self._accepted)

    @contextlib.contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """Turns any exception of a grammar library into an error of this sequence, so that it cannot fail a step."""
        try:
            yield
        except Exception as error:
            logger.exception("a grammar cannot be followed")
            self._has_raised = True
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
            self.error = "no token of the model's vocabulary can continue the grammar"


def _set(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
