"""Changes to logits. A step that cannot be sampled as a whole takes them back, and samples its rows apart."""

from __future__ import annotations

import torch


class LogitEdits:
    """Reads and writes logits. What it costs goes by their number, and by the vocabulary's for `keep` and `mask`."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits  # float32 [rows, vocabulary]
        # What stood where: of single places, or of whole rows.
        self._before: list[tuple[tuple[torch.Tensor, ...], torch.Tensor]] = []

    @property
    def device(self) -> torch.device:
        """Where rows, ids and values have to be."""
        return self._logits.device

    def read(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits float32 [count] at int64 [count] rows and ids."""
        return self._logits[rows, ids]

    def write(self, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Sets them. A place that is named twice must get the same value both times."""
        self._before.append(((rows, ids), self.read(rows, ids)))
        self._logits[rows, ids] = values

    def keep(self, rows: torch.Tensor, ids: torch.Tensor, whole: torch.Tensor) -> None:
        """Forbids all tokens of the rows `whole`, int64 without repetitions, but those at the places."""
        kept = self.read(rows, ids)
        self._before.append(((whole,), self._logits[whole]))
        self._logits.index_fill_(0, whole, -torch.inf)
        self._logits[rows, ids] = kept

    def mask(self, rows: torch.Tensor, allowed: torch.Tensor) -> None:
        """Forbids tokens of rows.

        Args:
            rows: int64 [count], without repetitions.
            allowed: bool [count, vocabulary]
        """
        before = self._logits[rows]
        self._before.append(((rows,), before))
        self._logits[rows] = before.masked_fill(~allowed, -torch.inf)

    def undo(self) -> None:
        """Makes all logits what they were."""
        while self._before:
            place, values = self._before.pop()
            self._logits[place] = values
