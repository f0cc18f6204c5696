"""What a step costs by the sequences in it, by the prompts beside them and by the rows that drafts add, as measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

# So many of the latest measurements make an estimate, by their median: the first step of a shape, which is recorded
# (`runner/recorded.py`), and one in which something else has the processor say little of the others.
_SAMPLES = 8
# Of fewer measurements nothing follows: the first ones may be of steps that were recorded, or that caught up.
_FEW = 4
# Until a row's price is measured it is taken for such a share of a step by its number of sequences.
_PRIOR_SHARE = 0.1
# Numbers that are so close together are one kind of step: steps of a quarter of a power of two, and of a half.
_SEQUENCES_PER_OCTAVE, _ROWS_PER_OCTAVE = 4, 2
# Of what drafts cost before the first step that tells, what is owed, so much is paid by each one that does.
_REPAID = 1 / 16


def magnitude(num_sequences: int) -> int:
    """Which steps are alike: those of the nearest power of two, so that a few that have just ended change nothing."""
    return round(math.log2(max(1, num_sequences)))


class _Point:
    """Steps of one kind."""

    __slots__ = ("_numbers", "_samples", "at", "seconds")

    def __init__(self) -> None:
        self._numbers: deque[int] = deque(maxlen=_SAMPLES)
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self.at = self.seconds = 0.0

    @property
    def count(self) -> int:
        return len(self._samples)

    def note(self, number: int, seconds: float) -> None:
        self._numbers.append(number)
        self._samples.append(seconds)
        self.at = sum(self._numbers) / len(self._numbers)
        self.seconds = sorted(self._samples)[len(self._samples) // 2]


class _Curve:
    """Seconds over a number, by the points that are known of it."""

    def __init__(self, per_octave: int, points: tuple[tuple[float, float], ...] = ()) -> None:
        """
        Args:
            points: that hold whatever is measured.
        """
        self._per_octave = per_octave
        self._points: dict[int, _Point] = {}
        self._fixed = points
        self._line: list[tuple[float, float]] = []  # all points in order

    def note(self, at: int, seconds: float) -> None:
        kind = round(self._per_octave * math.log2(at))
        self._points.setdefault(kind, _Point()).note(at, seconds)
        known = [(point.at, point.seconds) for point in self._points.values() if point.count >= _FEW]
        self._line = sorted([*self._fixed, *known]) if known else []

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._line)

    def knows(self, at: int) -> bool:
        """Whether it has been measured thereabouts."""
        point = self._points.get(round(self._per_octave * math.log2(at)))
        return point is not None and point.count >= _FEW

    def at(self, number: int) -> float | None:
        """By the line between the points beside it; beyond the last one as the line goes on, level before the first."""
        line = self._line
        if not line:
            return None
        index = min(bisect_left(line, (number, 0.0)), len(line) - 1)
        if index == 0:
            return line[0][1]
        (left, low), (right, high) = line[index - 1], line[index]
        return max(0.0, low + (high - low) * (number - left) / (right - left)) if right > left else high


class _Drafts:
    """What drafts cost in steps of one magnitude."""

    def __init__(self) -> None:
        self.extra = _Curve(_ROWS_PER_OCTAVE, ((0.0, 0.0),))  # seconds over drafted rows
        self._owed = 0.0

    def owe(self, seconds: float) -> None:
        self._owed += seconds

    def note(self, num_rows: int, seconds: float) -> None:
        paid = self._owed * _REPAID
        self._owed -= paid
        self.extra.note(num_rows, seconds + paid)


class StepCosts:
    """Seconds of steps in which sequences decode: of those without drafts, by their sequences; what prompts add to
    them, by their tokens; and what drafted rows add.
    """

    def __init__(self) -> None:
        self._plain = _Curve(_SEQUENCES_PER_OCTAVE)
        self._prompts = _Curve(_ROWS_PER_OCTAVE, ((0.0, 0.0),))
        self._drafts: dict[int, _Drafts] = {}  # by magnitude

    def note(self, num_sequences: int, num_rows: int, seconds: float, num_prompt_tokens: int = 0) -> bool:
        """A step took so long.

        Args:
            num_sequences: that sampled; at least one.
            num_rows: drafted tokens that it verified.
            num_prompt_tokens: all else that it computed.

        Returns:
            Whether anything follows from it: of drafts nothing does beside prompts whose own price is not known, or
            which take more than all sequences do.
        """
        plain = self._plain.at(num_sequences)
        if not num_rows and not num_prompt_tokens:
            self._plain.note(num_sequences, seconds)
            return True
        if plain is None:
            return False
        if not num_rows:
            self._prompts.note(num_prompt_tokens, seconds - plain)
            return True
        prompts = self._prompts.at(num_prompt_tokens) if num_prompt_tokens else 0.0
        if prompts is None or prompts > plain:
            return False
        self._of(num_sequences).note(num_rows, seconds - plain - prompts)
        return True

    def owe(self, num_sequences: int, seconds: float) -> None:
        """What drafts of about so many sequences took in a step that told nothing else: it has to be earned."""
        self._of(num_sequences).owe(seconds)

    def _of(self, num_sequences: int) -> _Drafts:
        return self._drafts.setdefault(magnitude(num_sequences), _Drafts())

    def is_known(self, num_sequences: int) -> bool:
        """Whether steps of about so many sequences without drafts have been measured."""
        return self._plain.knows(num_sequences)

    def seconds(self, num_sequences: int, num_rows: int) -> float:
        """Of a step that verifies so many drafted tokens; 0 where not even one without is known."""
        plain = self._plain.at(num_sequences) or 0.0
        if not num_rows:
            return plain
        known = [each for each, drafts in self._drafts.items() if drafts.extra.is_known]
        if not known:
            return plain * (1 + _PRIOR_SHARE * num_rows / num_sequences)
        nearest = min(known, key=lambda each: abs(each - magnitude(num_sequences)))
        return plain + (self._drafts[nearest].extra.at(num_rows) or 0.0)
