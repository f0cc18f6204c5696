"""Measured cost of a step, by its sequences, the prompt tokens computed with them, and the rows that drafts add."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

# An estimate is the median of this many latest measurements. Outliers are the first step of a shape, in which a CUDA
# graph is captured (`runner/recorded.py`), and steps in which the processor was busy with something else.
_SAMPLES = 8
# Fewer measurements are not used: the first ones may be of steps that captured a graph or caught up.
_FEW = 4
# Until it is measured, one draft row per sequence is assumed to cost this share of a step.
_PRIOR_SHARE = 0.1
# Measurements are grouped by number of sequences (a quarter of an octave) and of rows (half an octave).
_SEQUENCES_PER_OCTAVE, _ROWS_PER_OCTAVE = 4, 2
# Share of the debt, the cost of drafts in steps that could not be measured, that is added to each measured step.
_REPAID = 1 / 16


def magnitude(num_sequences: int) -> int:
    """Groups similar steps by the nearest power of two, so that a few sequences more or less make no difference."""
    return round(math.log2(max(1, num_sequences)))


class _Point:
    """Measurements of one group of steps."""

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
    """Seconds as a function of a number, interpolated between measured points."""

    def __init__(self, per_octave: int, points: tuple[tuple[float, float], ...] = ()) -> None:
        """
        Args:
            points: fixed points, in addition to the measured ones.
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
        """Whether it has been measured near this number."""
        point = self._points.get(round(self._per_octave * math.log2(at)))
        return point is not None and point.count >= _FEW

    def at(self, number: int) -> float | None:
        """Linear interpolation; extrapolates after the last point and is constant before the first. None if unknown."""
        line = self._line
        if not line:
            return None
        index = min(bisect_left(line, (number, 0.0)), len(line) - 1)
        if index == 0:
            return line[0][1]
        (left, low), (right, high) = line[index - 1], line[index]
        return max(0.0, low + (high - low) * (number - left) / (right - left)) if right > left else high


class _Drafts:
    """Cost of drafts in steps of one magnitude."""

    def __init__(self) -> None:
        self.extra = _Curve(_ROWS_PER_OCTAVE, ((0.0, 0.0),))  # seconds by number of drafted rows
        self._owed = 0.0

    def owe(self, seconds: float) -> None:
        self._owed += seconds

    def note(self, num_rows: int, seconds: float) -> None:
        paid = self._owed * _REPAID
        self._owed -= paid
        self.extra.note(num_rows, seconds + paid)


class StepCosts:
    """Measured seconds of decode steps.

    That is the time of steps without drafts by their number of sequences, what prompts add by their tokens, and what
    drafted rows add.
    """

    def __init__(self) -> None:
        self._plain = _Curve(_SEQUENCES_PER_OCTAVE)
        self._prompts = _Curve(_ROWS_PER_OCTAVE, ((0.0, 0.0),))
        self._drafts: dict[int, _Drafts] = {}  # by magnitude

    def note(self, num_sequences: int, num_rows: int, seconds: float, num_prompt_tokens: int = 0) -> bool:
        """Records the duration of a step.

        Args:
            num_sequences: sequences that sampled; at least one.
            num_rows: drafted tokens that the step verified.
            num_prompt_tokens: all other tokens that it computed.

        Returns:
            Whether the measurement was usable. A step with drafts is not if the cost of its prompts is unknown or
            greater than that of all its sequences.
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
        """Adds the drafting time of a step without a usable measurement to the debt of steps of this magnitude."""
        self._of(num_sequences).owe(seconds)

    def _of(self, num_sequences: int) -> _Drafts:
        return self._drafts.setdefault(magnitude(num_sequences), _Drafts())

    def is_known(self, num_sequences: int) -> bool:
        """Whether steps without drafts have been measured for about this many sequences."""
        return self._plain.knows(num_sequences)

    def seconds(self, num_sequences: int, num_rows: int) -> float:
        """Estimated seconds of a step that verifies `num_rows` drafted tokens; 0 if no plain step is known either."""
        plain = self._plain.at(num_sequences) or 0.0
        if not num_rows:
            return plain
        known = [each for each, drafts in self._drafts.items() if drafts.extra.is_known]
        if not known:
            return plain * (1 + _PRIOR_SHARE * num_rows / num_sequences)
        nearest = min(known, key=lambda each: abs(each - magnitude(num_sequences)))
        return plain + (self._drafts[nearest].extra.at(num_rows) or 0.0)
