"""What a step costs by the sequences in it and by the rows that drafts add, as measured."""

from __future__ import annotations

# A new measurement counts for so much of an estimate, and the first few for more.
_SHARE = 0.1
# What takes so many times as long as was to be expected counts as that: a pause of the machine is no price of rows.
_MOST_SURPRISE = 3.0
# Until a row's price is measured it is taken for such a share of a step by its number of sequences.
_PRIOR_SHARE = 0.1


class Estimate:
    """A mean that follows what is measured."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def note(self, value: float) -> None:
        """One more measurement."""
        self.count += 1
        self.value += (value - self.value) * max(_SHARE, 1.0 / self.count)


class StepCosts:
    """Seconds of steps that decode.

    Those without drafts are known by their number of sequences. What drafted rows add is known by the order of
    magnitude of both numbers, as seconds for each row, for a processor's price of a row depends on how many there are.
    """

    def __init__(self) -> None:
        self._plain: dict[int, Estimate] = {}  # number of sequences → seconds
        self._per_row: dict[tuple[int, int], Estimate] = {}  # magnitudes of sequences and of rows → seconds

    def note(self, num_sequences: int, num_rows: int, seconds: float) -> None:
        """A step took so long.

        Args:
            num_sequences: that sampled; at least one, and nothing else was computed.
            num_rows: drafted tokens that it verified.
        """
        if not num_rows:
            estimate = self._plain.setdefault(num_sequences, Estimate())
            usual = estimate.value if estimate.count else seconds
            estimate.note(min(seconds, _MOST_SURPRISE * usual))
        elif plain := self.plain(num_sequences):
            most = _MOST_SURPRISE * self.seconds(num_sequences, num_rows)
            key = num_sequences.bit_length(), num_rows.bit_length()
            self._per_row.setdefault(key, Estimate()).note(max(0.0, min(seconds, most) - plain) / num_rows)

    def plain(self, num_sequences: int) -> float:
        """Seconds of a step without drafts; 0 where none is known."""
        found = self._plain.get(num_sequences)
        if found is None and self._plain:
            nearest = min(self._plain, key=lambda each: abs(each - num_sequences))
            found = self._plain[nearest]
        return found.value if found else 0.0

    def is_known(self, num_sequences: int) -> bool:
        """Whether steps of so many sequences without drafts have been measured."""
        return num_sequences in self._plain

    def seconds(self, num_sequences: int, num_rows: int) -> float:
        """Of a step that verifies so many drafted tokens; 0 where not even one without is known."""
        plain = self.plain(num_sequences)
        if not num_rows:
            return plain
        return plain + num_rows * self._row(num_sequences, num_rows, plain)

    def _row(self, num_sequences: int, num_rows: int, plain: float) -> float:
        """As measured, else as it was for the nearest number of rows."""
        sequences, rows = num_sequences.bit_length(), num_rows.bit_length()
        for away in range(8):
            for magnitude in (rows - away, rows + away):
                if found := self._per_row.get((sequences, magnitude)):
                    return found.value
        return _PRIOR_SHARE * plain / num_sequences
