"""Where the last tokens of a text stood before, in time that does not depend on how long the text is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_NOWHERE = -1


class TokenIndex:
    """Of tokens that grow at their end: behind which positions the same `width` (1 or 2) tokens stand.

    A table has the last position of each, and an array the position before that of each: a chain that leads from an
    occurrence to those before it. Each token costs the same to take in, and so does each step along a chain.
    """

    __slots__ = ("_before", "_last", "_start", "_width", "tokens")

    def __init__(self, tokens: Sequence[int], width: int, start: int = 0) -> None:
        """
        Args:
            tokens: owned by somebody else, who appends to them.
            start: those before it are not looked at.
        """
        self.tokens = tokens
        self._width = width
        self._start = start
        self._last: dict[int, int] = {}  # the last `width` tokens and their group, packed → position behind them
        self._before = array("q")  # of each position from the first that is indexed: see above

    @property
    def size(self) -> int:
        """How many of the first tokens have been taken in."""
        return self._start + (len(self._before) + self._width - 1 if self._before else 0)

    def take_in(self, most: int, group: int = 0) -> int:
        """Indexes tokens that have come since, so many at most; how many it were.

        Args:
            group: whose tokens these are: `occurrences` finds those of the same group only.
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
        """Positions behind the same last tokens as the suffix has, the latest first; those at the very end are none.

        Args:
            most: steps along the chain.
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
        """How many tokens before the position are as the suffix ends, `most` at most."""
        tokens, length = self.tokens, 0
        limit = min(most, position - self._start, len(suffix))
        while length < limit and tokens[position - 1 - length] == suffix[-1 - length]:
            length += 1
        return length


def _key(last: int, before: int, group: int) -> int:
    return last | before << 32 | group << 64
