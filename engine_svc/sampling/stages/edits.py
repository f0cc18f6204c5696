"""Changes to single logits. A step that cannot be sampled as a whole takes them back, and samples its rows apart."""

from __future__ import annotations

import torch


class LogitEdits:
    """Reads and writes logits one by one; what it costs goes by their number and not by the vocabulary's size."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits  # float32 [rows, vocabulary]
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    @property
    def device(self) -> torch.device:
        """Where rows, ids and values have to be."""
        return self._logits.device

    def read(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits float32 [count] at int64 [count] rows and ids."""
        return self._logits[rows, ids]

    def write(self, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Sets them. A place that is named twice must get the same value both times."""
        self._before.append((rows, ids, self.read(rows, ids)))
        self._logits[rows, ids] = values

    def undo(self) -> None:
        """Makes all logits what they were."""
        while self._before:
            rows, ids, values = self._before.pop()
            self._logits[rows, ids] = values
