"""Finds stop strings in a growing text, regardless of how it is split into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string that was found."""

    text: str  # text that may still be shown, up to the match or through its end
    stop_string: str


class StopMatcher:
    """Holds back text that may be the beginning of a stop string until that is decided.

    Of several matches, the one that ends first counts, and of those that end together the longest, so the result does
    not depend on how the text was split.
    """

    def __init__(self, stop_strings: Sequence[str], include_stop_string: bool) -> None:
        self._stop_strings = tuple(stop_strings)
        self._include = include_stop_string
        self._held = ""

    def add(self, text: str, allowed: bool = True) -> str | Match:
        """The text that may be shown now, or the match that ends the sequence.

        Args:
            allowed: False while no stop string may end the sequence: a match that ends in this text does not count.
        """
        if allowed and self._stop_strings:
            buffer = self._held + text
            if found := self._first_match(buffer, len(self._held)):
                end, stop = found
                return Match(buffer[: end if self._include else end - len(stop)], stop)
        return self.pass_over(text)

    def pass_over(self, text: str) -> str:
        """The text that may be shown now, when no stop string may end the sequence."""
        if not self._stop_strings:
            return text
        buffer = self._held + text
        keep = self._undecided(buffer)
        self._held = buffer[keep:]
        return buffer[:keep]

    def finish(self) -> str:
        """The text that was held back: nothing can complete a stop string any more."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str, before: int) -> tuple[int, str] | None:
        """End and string of the match that ends first, after the `before` characters that were searched already."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop_strings:
            start = buffer.find(stop, max(0, before - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return (best[0], best[2]) if best else None

    def _undecided(self, buffer: str) -> int:
        """Start of the longest suffix of `buffer` that is a prefix of a stop string; the buffer's length if there is
        none."""
        first = len(buffer)
        for stop in self._stop_strings:
            start = max(0, len(buffer) - len(stop) + 1)
            while (start := buffer.find(stop[0], start, first)) >= 0:
                if stop.startswith(buffer[start:]):
                    first = start
                    break
                start += 1
        return first
