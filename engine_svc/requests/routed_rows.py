"""What a sequence's tokens were routed to, as far as it has not been reported."""

from __future__ import annotations


class RoutedRows:
    """One row for each token, in order."""

    def __init__(self, row_bytes: int, first: int) -> None:
        """
        Args:
            first: position of the first token whose row is wanted.
        """
        self._row_bytes, self._first = row_bytes, first
        self._rows = bytearray()

    def add(self, first: int, rows: bytes) -> None:
        """Adds rows from position `first` on, in place of those that it has there: they belonged to wrong guesses, or
        to a sequence that has been preempted."""
        place = (first - self._first) * self._row_bytes
        del self._rows[max(0, place) :]
        self._rows += rows[max(0, -place) :]

    def take(self, end: int) -> bytes:
        """Removes and returns the rows before position `end`."""
        size = max(0, end - self._first) * self._row_bytes
        taken = bytes(self._rows[:size])
        del self._rows[:size]
        self._first = max(self._first, end)
        return taken
