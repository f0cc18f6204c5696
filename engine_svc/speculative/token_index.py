"""Finds earlier occurrences of the last tokens of a text, in time independent of the text's length."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_NOWHERE = -1


class TokenIndex:
    """Index of a growing text: the positions after each occurrence of the same `width` (1 or 2) tokens.

    A table holds the last position for each key, and an array the previous one for each position: a chain from each
    occurrence to the earlier ones. Indexing a token and following a link each take constant time.
    """

    __slots__ = ("_before", "_last", "_start", "_width", "tokens")

    def __init__(self, tokens: Sequence[int], width: int, start: int = 0) -> None:
        """
        Args:
            tokens: the text, owned by the caller, who appends to it.
            start: tokens before this position are ignored.
        """
        self.tokens = tokens
        self._width = width
        self._start = start
        self._last: dict[int, int] = {}  # the last `width` tokens and their group, packed → position after them
        self._before = array("q")  # previous position in the chain, for each indexed position

    @property
    def size(self) -> int:
        """How many of the first tokens have been indexed."""
        return self._start + (len(self._before) + self._width - 1 if self._before else 0)

    def take_in(self, most: int, group: int = 0) -> int:
        """Indexes up to `most` new tokens; returns how many it indexed.

        Args:
            group: owner of these tokens: `occurrences` only finds those of the same group.
        """
        tokens, last, before = self.tokens, self._last, self._before
        begin = self.size if before else self._start + self._width - 1
        end = min(len(tokens), begin + most)
        for index in range(begin, end):
            key = _key(tokens[index], tokens[index - 1] if self._width == 2 else 0, group)
            before.append(last.get(key, _NOWHERE))
            last[key] = index + 1
        return max(0, end - begin)

    def occurrences(self, suffix: Sequence[int], most: int, group: int = 0) -> list[int]:
        """Positions after occurrences of the suffix's last tokens, latest first; excludes the end of the text.

        Args:
            most: most links of the chain to follow.
        """
        if len(suffix) < self._width:
            return []
        position = self._last.get(_key(suffix[-1], suffix[-2] if self._width == 2 else 0, group), _NOWHERE)
        found, first, end = [], self._start + self._width, len(self.tokens)
        for _ in range(most):
            if position == _NOWHERE:
                break
            if position < end:
                found.append(position)
            position = self._before[position - first]
        return found

    def common(self, position: int, suffix: Sequence[int], most: int) -> int:
        """How many tokens before the position equal the end of the suffix, at most `most`."""
        tokens, length = self.tokens, 0
        limit = min(most, position - self._start, len(suffix))
        while length < limit and tokens[position - 1 - length] == suffix[-1 - length]:
            length += 1
        return length


def _key(last: int, before: int, group: int) -> int:
    return last | before << 32 | group << 64
