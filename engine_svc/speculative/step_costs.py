"""What a step costs by the sequences in it and by the rows that drafts add, as measured."""

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


class StepCosts:
    """Seconds of steps that decode: of those without drafts, by their sequences; and what drafted rows add to them."""

    def __init__(self) -> None:
        self._plain = _Curve(_SEQUENCES_PER_OCTAVE)
        self._extra: dict[int, _Curve] = {}  # magnitude of the number of sequences → seconds over drafted rows

    def note(self, num_sequences: int, num_rows: int, seconds: float) -> None:
        """A step took so long.

        Args:
            num_sequences: that sampled; at least one, and nothing else was computed.
            num_rows: drafted tokens that it verified.
        """
        if not num_rows:
            self._plain.note(num_sequences, seconds)
        elif (plain := self._plain.at(num_sequences)) is not None:
            magnitude = num_sequences.bit_length()
            if magnitude not in self._extra:
                self._extra[magnitude] = _Curve(_ROWS_PER_OCTAVE, ((0.0, 0.0),))
            self._extra[magnitude].note(num_rows, seconds - plain)

    def is_known(self, num_sequences: int) -> bool:
        """Whether steps of about so many sequences without drafts have been measured."""
        return self._plain.knows(num_sequences)

    def seconds(self, num_sequences: int, num_rows: int) -> float:
        """Of a step that verifies so many drafted tokens; 0 where not even one without is known."""
        plain = self._plain.at(num_sequences) or 0.0
        if not num_rows:
            return plain
        known = [magnitude for magnitude, curve in self._extra.items() if curve.is_known]
        if not known:
            return plain * (1 + _PRIOR_SHARE * num_rows / num_sequences)
        nearest = min(known, key=lambda magnitude: abs(magnitude - num_sequences.bit_length()))
        return plain + (self._extra[nearest].at(num_rows) or 0.0)
