"""Repetition, presence and frequency penalties, at a cost proportional to the penalized tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import checked_ids
from engine_svc.transfer import to_device

# Bound of penalized logits, so that they stay finite even at the lowest temperature.
_MOST = 1e30
_COLUMNS = 64


@dataclass(frozen=True)
class _Entries:
    """The tokens that a step's penalties apply to, row after row."""

    slots: list[int]
    rows: torch.Tensor  # int64 [slots], row in the logits
    owners: torch.Tensor  # int64 [entries], index into slots
    places: torch.Tensor  # int64 [entries], index in the flattened tables
    token_ids: torch.Tensor  # int64 [entries]


@dataclass(frozen=True)
class _Recorder:
    """Counts the sampled tokens; see Recorder."""

    penalties: Penalties
    entries: _Entries

    def record(self, token_ids: torch.Tensor) -> None:
        """See Recorder.record."""
        self.penalties.record(self.entries, token_ids)


class Penalties(LogitsStage):
    """Keeps, for each slot with penalties, a list of the tokens seen and how often each is in its output.

    Prompt tokens are listed once, and only if the repetition penalty needs them. A sampled token is always appended,
    even if it is already listed, because its value may only be known on the device; all entries of a token have its
    count.
    """

    looks_back = True
    is_sequential = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._lengths = [0] * max_num_seqs
        self._values = np.zeros((max_num_seqs, 3), np.float32)  # repetition, frequency and presence penalty of a slot
        # int32 [slots, columns], grown to the longest list. Empty before the first sequence with a penalty.
        self._ids = torch.zeros((max_num_seqs, 0), dtype=torch.int32, device=device)
        self._counts = torch.zeros((max_num_seqs, 0), dtype=torch.int32, device=device)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """Counts the tokens of the new sequence; see LogitsStage.add."""
        wanted = sequence.plan.parameters
        values = (wanted.repetition_penalty, wanted.frequency_penalty, wanted.presence_penalty)
        if values == (1.0, 0.0, 0.0):
            return False
        self._values[slot] = values
        ids, num_prompt_tokens = checked_ids(sequence.token_ids, self._vocab_size), sequence.num_prompt_tokens
        output, counts = np.unique(ids[num_prompt_tokens:], return_counts=True)
        prompt = ids[sequence.num_unknown_tokens : num_prompt_tokens] if wanted.repetition_penalty != 1.0 else ids[:0]
        seen = np.concatenate((output, np.setdiff1d(prompt, output)))
        self.reserve(len(seen))
        self._ids[slot, : len(seen)] = to_device(seen, self._device)
        self._counts[slot, : len(seen)] = 0
        self._counts[slot, : len(output)] = to_device(counts.astype(np.int32), self._device)
        self._lengths[slot] = len(seen)
        return True

    def apply(self, edits: LogitEdits, rows: StageRows) -> _Recorder:
        """See LogitsStage.apply."""
        entries = self._entries(rows.rows, rows.slots)
        parameters = to_device(self._values[rows.slots].T.copy(), self._device)
        repetition, frequency, presence = parameters[:, entries.owners]
        counts = self._counts.view(-1)[entries.places]
        at = entries.rows[entries.owners], entries.token_ids
        before = edits.read(*at)
        after = torch.where(before > 0, before / repetition, before * repetition)
        after = after - counts * frequency - (counts > 0) * presence
        edits.write(*at, torch.where(before.isfinite(), after.clamp_(-_MOST, _MOST), before))
        return _Recorder(self, entries)

    def record(self, entries: _Entries, token_ids: torch.Tensor) -> None:
        """Counts the tokens just sampled in the rows of the entries.

        Args:
            token_ids: int64 [rows of the logits]
        """
        tokens, counts = token_ids[entries.rows], self._counts.view(-1)
        same = entries.token_ids == tokens[entries.owners]
        known = counts[entries.places] + same
        counts[entries.places] = known
        most = torch.ones(len(tokens), dtype=torch.int32, device=self._device)
        most.scatter_reduce_(0, entries.owners, known * same, "amax")
        columns = [self._lengths[slot] for slot in entries.slots]
        at = to_device(entries.slots, self._device), to_device(columns, self._device)
        self._ids[at], self._counts[at] = tokens.int(), most
        for slot in entries.slots:
            self._lengths[slot] += 1

    def _entries(self, rows: list[int], slots: list[int]) -> _Entries:
        """The entries of the rows; reserves room for one more in each."""
        lengths = np.array([self._lengths[slot] for slot in slots])
        self.reserve(int(lengths.max()) + 1)
        owners = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        places = to_device(np.array(slots)[owners] * self._ids.shape[1] + within, self._device)
        return _Entries(
            slots,
            to_device(rows, self._device),
            to_device(owners, self._device),
            places,
            self._ids.view(-1)[places].long(),
        )

    def reserve(self, num_tokens: int) -> None:
        """See LogitsStage.reserve. Later growth is rare, because the tables' width doubles."""
        have = self._ids.shape[1]
        if num_tokens > have:
            more = max(_COLUMNS, 2 * have, num_tokens) - have
            self._ids, self._counts = (
                torch.nn.functional.pad(table, (0, more)).contiguous() for table in (self._ids, self._counts)
            )
