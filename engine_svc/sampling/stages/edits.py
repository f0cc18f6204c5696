"""Reversible edits of logits: a step that cannot be sampled as a whole undoes them and samples its rows apart."""

from __future__ import annotations

import torch

from engine_svc.parallel.vocabulary import VocabularyPart


class LogitEdits:
    """Reads and writes logits, at a cost proportional to their number, or to the vocabulary for `keep` and `limit`.

    If ranks share the logits, each rank changes its own; writes to those of other ranks are ignored.
    """

    def __init__(self, logits: torch.Tensor, part: VocabularyPart | None = None) -> None:
        self._given = self._logits = logits  # float32 [rows, vocabulary], or only this rank's tokens
        self._part = part
        # (tensor, index, previous values) of each write, to single logits or to whole rows.
        self._before: list[tuple[torch.Tensor, tuple[torch.Tensor | int, ...], torch.Tensor]] = []

    @property
    def logits(self) -> torch.Tensor:
        """The logits as they are now; after `limit`, a different tensor from the one given."""
        return self._logits

    @property
    def device(self) -> torch.device:
        """The device that rows, ids and values must be on."""
        return self._logits.device

    @property
    def tokens(self) -> range:
        """The token ids whose logits are here."""
        first = 0 if self._part is None else self._part.first
        return range(first, first + self._logits.shape[1])

    def read(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits, float32 [count], at int64 [count] rows and ids; arbitrary values for tokens of other ranks."""
        if self._part is not None:
            ids = (ids - self._part.first).clamp(0, self._part.count - 1)
        return self._logits[rows, ids]

    def write(self, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Sets logits at rows and ids. Duplicates must have the same value."""
        if self._part is not None:
            ids = ids - self._part.first
            own = (ids >= 0) & (ids < self._part.count)
            rows, ids, values = rows[own], ids[own], values[own]
        self._before.append((self._logits, (rows, ids), self._logits[rows, ids]))
        self._logits[rows, ids] = values

    def keep(self, rows: torch.Tensor, ids: torch.Tensor, whole: torch.Tensor) -> None:
        """Forbids all tokens in the rows `whole` (int64, unique), except those at `rows` and `ids`."""
        kept = self.read(rows, ids)
        self._before.append((self._logits, (whole,), self._logits[whole]))
        self._logits.index_fill_(0, whole, -torch.inf)
        self.write(rows, ids, kept)

    def limit(self, most: torch.Tensor) -> None:
        """Limits each logit to the value in `most`, float32 [rows, tokens], which is overwritten with the result.

        So the logits need not be saved for `undo`: copying them would take as long as limiting them.
        """
        self._logits = torch.minimum(self._logits, most, out=most)

    def row(self, row: int) -> torch.Tensor:
        """A copy of a row's logits, float32 [vocabulary]. Only for logits that ranks do not share."""
        return self._logits[row].clone()

    def write_row(self, row: int, logits: torch.Tensor) -> None:
        """Sets all logits of a row."""
        self._before.append((self._logits, (row,), self.row(row)))
        self._logits[row] = logits

    def undo(self) -> None:
        """Restores the logits that were given."""
        while self._before:
            logits, place, values = self._before.pop()
            logits[place] = values
        self._logits = self._given
