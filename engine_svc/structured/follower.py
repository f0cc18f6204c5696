"""One sequence and its grammar, which begins where the thinking ends."""

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

# Line breaks that may come between the thinking and the answer, and are no part of it, nor of the grammar.
_MOST_BLANKS = 4

# What looking ahead may take of the engine's time, at a sequence's beginning and for each token of its answer.
_AHEAD_SECONDS = 0.25
_AHEAD_SECONDS_A_TOKEN = 0.001


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

    It can look ahead, along tokens that are only guessed, and is where it was afterwards.
    """

    def __init__(self, grammar: Grammar, endings: Endings, marks: ReasoningMarks | None = None) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._accepted: list[int] = []  # by the matcher
        self._endings = endings
        self._mask_words = 0
        self._has_raised = False
        self._seconds_ahead = 0.0  # of the processor's time, spent on looking ahead
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
        count = self._matcher.accept(answer)
        self._accepted += answer[:count]
        if count < len(answer):
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
        self._mask_words = len(row)
        with self._noting_faults():
            self._fill(row)

    def find_end(self) -> None:
        """Finds out whether anything can come next, as `fill` does."""
        self.fill(np.empty(self._mask_words, np.int32))

    def count_fitting(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens may come, one behind the other, and not end the sequence.

        None once looking ahead has taken too much time.
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
        """Writes what may come behind each of the tokens, of which all are fitting; see `fill`.

        Returns:
            How many tokens may come at most: one more than these, unless the sequence is at its end before, or is found
            to be unable to go on; rows from there on are of no meaning, and allow everything.
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
        """Takes back what is appended meanwhile, and what was found out by it."""
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
        else:  # nobody knows where it is: a guess must not end a sequence, so begin anew, and guess no more
            self._matcher, self._has_raised, self._seconds_ahead = self._grammar.matcher(), False, math.inf
            self._matcher.accept(self._accepted)

    @contextlib.contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """Whatever a library raises is this sequence's own fault, and must not reach a step."""
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
            self.error = "no token of the model's vocabulary can go on in the grammar"


def _set(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(row: Row, token_ids: Collection[int]) -> None:
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
