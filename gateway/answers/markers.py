"""Finds marker words of a format in text that arrives in pieces."""

from __future__ import annotations

import re


class Markers:
    """Searches for several non-empty words in linear time; of several that begin at one place, the longest is found."""

    def __init__(self, *words: str) -> None:
        self.words = tuple(sorted(words, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.words)) or r"(?!)")
        self._longest = max(map(len, words), default=1)
        self._firsts = frozenset(word[0] for word in words)

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
