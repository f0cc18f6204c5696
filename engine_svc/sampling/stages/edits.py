"""Changes to logits. A step that cannot be sampled as a whole takes them back, and samples its rows apart."""

from __future__ import annotations

import torch

from engine_svc.parallel.vocabulary import VocabularyPart


class LogitEdits:
    """Reads and writes logits. What it costs goes by their number, and by the vocabulary's for `keep` and `limit`.

    Of logits that ranks share, each rank changes its own: what is written to another one's is nothing to it.
    """

    def __init__(self, logits: torch.Tensor, part: VocabularyPart | None = None) -> None:
        self._given = self._logits = logits  # float32 [rows, vocabulary], or the tokens of this rank
        self._part = part
        # What stood where, in which of them: of single places, or of whole rows.
        self._before: list[tuple[torch.Tensor, tuple[torch.Tensor | int, ...], torch.Tensor]] = []

    @property
    def logits(self) -> torch.Tensor:
        """As they are now; another tensor than the one given after `limit`."""
        return self._logits

    @property
    def device(self) -> torch.device:
        """Where rows, ids and values have to be."""
        return self._logits.device

    @property
    def tokens(self) -> range:
        """Whose logits are here."""
        first = 0 if self._part is None else self._part.first
        return range(first, first + self._logits.shape[1])

    def read(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits float32 [count] at int64 [count] rows and ids; anything for tokens of another rank."""
        if self._part is not None:
            ids = (ids - self._part.first).clamp(0, self._part.count - 1)
        return self._logits[rows, ids]

    def write(self, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Sets them. A place that is named twice must get the same value both times."""
        if self._part is not None:
            ids = ids - self._part.first
            own = (ids >= 0) & (ids < self._part.count)
            rows, ids, values = rows[own], ids[own], values[own]
        self._before.append((self._logits, (rows, ids), self._logits[rows, ids]))
        self._logits[rows, ids] = values

    def keep(self, rows: torch.Tensor, ids: torch.Tensor, whole: torch.Tensor) -> None:
        """Forbids all tokens of the rows `whole`, int64 without repetitions, but those at the places."""
        kept = self.read(rows, ids)
        self._before.append((self._logits, (whole,), self._logits[whole]))
        self._logits.index_fill_(0, whole, -torch.inf)
        self.write(rows, ids, kept)

    def limit(self, most: torch.Tensor) -> None:
        """Lets no logit be above its place in `most`, float32 [rows, tokens], which becomes the logits.

        So they need not be kept for `undo`: copying the logits of a step would take as long as limiting them.
        """
        self._logits = torch.minimum(self._logits, most, out=most)

    def row(self, row: int) -> torch.Tensor:
        """A copy of a row's logits, float32 [vocabulary], where they are whole."""
        return self._logits[row].clone()

    def write_row(self, row: int, logits: torch.Tensor) -> None:
        """Sets all logits of a row."""
        self._before.append((self._logits, (row,), self.row(row)))
        self._logits[row] = logits

    def undo(self) -> None:
        """Makes the logits that were given what they were."""
        while self._before:
            logits, place, values = self._before.pop()
            logits[place] = values
        self._logits = self._given
