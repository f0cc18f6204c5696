"""Detects repetition in an output, at a cost per token proportional to the longest pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.sampling import RepetitionDetection

_NONE = -1  # no token


class RepetitionDetector:
    """Follows one output, token by token.

    A pattern of p tokens is repeated `count` times at the end exactly if each of the last p * (count - 1) tokens equals
    the one p before it. So, besides the last tokens, only the length of that run of equal tokens is kept for each p.
    """

    def __init__(self, rules: RepetitionDetection, token_ids: Sequence[int]) -> None:
        """
        Args:
            rules: validated detection parameters.
            token_ids: the output so far.
        """
        size = rules.max_pattern_size
        self._first = max(1, rules.min_pattern_size) - 1
        self._needed = np.arange(1, size + 1) * (rules.min_count - 1)
        # The last tokens, newest first, from `_start` on; they are moved to the end when there is no room before them.
        self._recent = np.full(8 * size, _NONE, np.int64)
        self._start = len(self._recent) - size
        last = np.array(token_ids[-size:], np.int64)[::-1]
        self._recent[self._start : self._start + len(last)] = last
        self._equal = _equal_at_end(np.array(token_ids, np.int64), size)

    def advance(self, token_id: int) -> bool:
        """Appends a token; returns whether the output now repeats itself."""
        size = len(self._needed)
        recent = self._recent[self._start : self._start + size]
        self._equal += 1
        self._equal *= recent == token_id
        if not self._start:
            self._start = len(self._recent) - size
            self._recent[self._start :] = recent
        self._start -= 1
        self._recent[self._start] = token_id
        return bool((self._equal >= self._needed)[self._first :].any())


def _equal_at_end(token_ids: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """For each p up to `size`, how many consecutive last tokens equal the one p before them."""
    found = np.zeros(size, np.int64)
    for distance in range(1, min(size, len(token_ids) - 1) + 1):
        if token_ids[-1] == token_ids[-1 - distance]:
            differ = (token_ids[distance:] != token_ids[:-distance])[::-1]
            found[distance - 1] = differ.argmax() if differ.any() else len(differ)
    return found
