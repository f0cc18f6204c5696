"""Forbidden token sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import Ids, checked_ids
from engine_svc.transfer import to_device

_NONE = -1  # no token


@dataclass(frozen=True)
class _Runs:
    """Bad words of one slot."""

    before: Ids  # [runs, width], tokens before the last one, right-aligned; the rest matches anything
    last: Ids  # [tokens], last tokens of the runs, unique
    places: Ids  # [runs], index of each run's last token in `last`


@dataclass(frozen=True)
class _Recorder:
    """Appends the sampled tokens to the slots' tails; see Recorder."""

    tails: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor

    def record(self, token_ids: torch.Tensor) -> None:
        """See Recorder.record."""
        self.tails[self.slots] = torch.cat((self.tails[self.slots, 1:], token_ids[self.rows, None]), dim=1)


class BadWords(LogitsStage):
    """Forbids the last token of each run in `bad_words` when the known tokens end with the others.

    The last known tokens may only be known on the device, so it keeps as many of each slot as the longest run needs.
    """

    looks_back = True
    is_sequential = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._runs: dict[int, _Runs] = {}  # by slot
        self._tails = torch.full((max_num_seqs, 0), _NONE, dtype=torch.int64, device=device)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        wanted = sequence.plan.parameters.bad_words
        if not wanted:
            return False
        width = max(map(len, wanted)) - 1
        before = np.full((len(wanted), width), _NONE)
        for row, run in enumerate(wanted):
            before[row, width + 1 - len(run) :] = checked_ids(run[:-1], self._vocab_size)
        last, places = np.unique(checked_ids([run[-1] for run in wanted], self._vocab_size), return_inverse=True)
        self._runs[slot] = _Runs(before, last, places)
        self._reserve(width)
        tail = np.full(self._tails.shape[1], _NONE)
        known = sequence.token_ids[max(sequence.num_unknown_tokens, len(sequence.token_ids) - len(tail)) :]
        tail[len(tail) - len(known) :] = known
        self._tails[slot] = to_device(tail, self._device)
        return True

    def apply(self, edits: LogitEdits, rows: StageRows) -> _Recorder | None:
        """See LogitsStage.apply."""
        wanted = [self._runs[slot] for slot in rows.slots]
        counts = [len(runs.last) for runs in wanted]
        starts = np.cumsum([0, *counts[:-1]])
        places = np.concatenate([runs.places + start for runs, start in zip(wanted, starts, strict=True)])
        owners = np.repeat(rows.slots, [len(runs.places) for runs in wanted])
        before = to_device(np.concatenate([self._widened(runs.before) for runs in wanted]), self._device)
        stands = ((before == self._tails[to_device(owners, self._device)]) | (before == _NONE)).all(dim=-1)
        bad = torch.zeros(sum(counts), dtype=torch.int32, device=self._device)
        bad.scatter_reduce_(0, to_device(places, self._device), stands.int(), "amax")
        at = (
            to_device(np.repeat(rows.rows, counts), self._device),
            to_device(np.concatenate([runs.last for runs in wanted]), self._device),
        )
        edits.write(*at, torch.where(bad > 0, -torch.inf, edits.read(*at)))
        if not self._tails.shape[1]:
            return None
        return _Recorder(self._tails, to_device(rows.slots, self._device), to_device(rows.rows, self._device))

    def _widened(self, before: Ids) -> npt.NDArray[np.int64]:
        """Pads `before` on the left to the width of the tails."""
        missing = self._tails.shape[1] - before.shape[1]
        return np.pad(before, ((0, 0), (missing, 0)), constant_values=_NONE)

    def _reserve(self, width: int) -> None:
        """Widens the tails to at least `width`. Other slots' runs do not look at the columns added on the left."""
        missing = width - self._tails.shape[1]
        if missing > 0:
            self._tails = torch.nn.functional.pad(self._tails, (missing, 0), value=_NONE)
