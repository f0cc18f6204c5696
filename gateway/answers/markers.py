"""Finds marker words of a format in text that arrives in pieces."""

from __future__ import annotations

import functools
import re


@functools.lru_cache(256)  # every answer has its own parsers, which search for the same words
def _prepared(words: tuple[str, ...]) -> tuple[tuple[str, ...], re.Pattern[str], int, frozenset[str]]:
    """Returns (words, longest first; pattern of any of them; length of the longest; first characters)."""
    words = tuple(sorted(words, key=len, reverse=True))
    pattern = re.compile("|".join(map(re.escape, words)) or r"(?!)")
    return words, pattern, max(map(len, words), default=1), frozenset(word[0] for word in words)


class Markers:
    """Searches for several non-empty words in linear time; of several that begin at one place, the longest is found."""

    def __init__(self, *words: str) -> None:
        self.words, self._pattern, self._longest, self._firsts = _prepared(words)

    def find(self, text: str, start: int) -> tuple[int, str]:
        """Returns the position and word of the first match that further text cannot extend.

        If there is none, returns the position from which the text may be the beginning of a word, and "".
        """
        found = self._pattern.search(text, start)
        if found is None:
            return self._undecided(text, start, len(text)), ""
        begun = self._undecided(text, start, found.start() + 1)
        return (begun, "") if begun <= found.start() else (found.start(), found.group())

    def _undecided(self, text: str, start: int, end: int) -> int:
        """Returns the first place before `end` where the rest of the text is a proper prefix of a word, else `end`."""
        for place in range(max(start, len(text) - self._longest + 1), end):
            if text[place] in self._firsts and any(
                len(word) > len(text) - place and text.endswith(word[: len(text) - place]) for word in self.words
            ):
                return place
        return end
