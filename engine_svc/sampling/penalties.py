"""Repetition, presence and frequency penalties, at the price of the tokens that they are about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.sampling.edits import LogitEdits
from engine_svc.sampling.slot import checked_ids
from engine_svc.transfer import to_device
from quire.sampling import SamplingParameters

# Penalties keep finite logits within this, so that even the lowest temperature leaves them finite.
_MOST = 1e30
_COLUMNS = 64


@dataclass(frozen=True)
class Entries:
    """The tokens that a step's penalties are about, those of one row after the other."""

    slots: list[int]  # that have penalties
    rows: torch.Tensor  # int64 [slots], of the logits
    owners: torch.Tensor  # int64 [entries], index into slots
    places: torch.Tensor  # int64 [entries], in the tables
    token_ids: torch.Tensor  # int64 [entries]


class Penalties:
    """For each slot with penalties, a list of the tokens that it has seen, and how often each is in its output.

    What is in the prompt stands there once, and only where the repetition penalty asks for it. A token that is sampled
    is appended whether it stands there already or not, for only the device may know which one it is; all entries of a
    token have its count.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._lengths = [0] * max_num_seqs
        # [slots, columns], grown to the longest list. Nothing before the first sequence with a penalty comes.
        self._ids = torch.zeros((max_num_seqs, 0), dtype=torch.int64, device=device)
        self._counts = torch.zeros((max_num_seqs, 0), dtype=torch.int32, device=device)

    @staticmethod
    def used(plan: SamplingParameters) -> bool:
        """Whether the plan has any penalty."""
        return plan.repetition_penalty != 1.0 or plan.presence_penalty != 0.0 or plan.frequency_penalty != 0.0

    def add(self, slot: int, plan: SamplingParameters, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Counts a sequence's tokens anew.

        Raises:
            ValueError: one of them lies outside of the vocabulary.
        """
        if not self.used(plan):
            return
        ids = checked_ids(token_ids, self._vocab_size)
        output, counts = np.unique(ids[num_prompt_tokens:], return_counts=True)
        prompt = ids[:num_prompt_tokens] if plan.repetition_penalty != 1.0 else ids[:0]
        seen = np.concatenate((output, np.setdiff1d(prompt, output)))
        self._reserve(len(seen))
        self._ids[slot, : len(seen)] = to_device(seen, self._device)
        self._counts[slot, : len(seen)] = 0
        self._counts[slot, : len(output)] = to_device(counts.astype(np.int32), self._device)
        self._lengths[slot] = len(seen)

    def apply(self, edits: LogitEdits, plans: list[SamplingParameters], slots: list[int]) -> Entries | None:
        """Changes the logits of the rows that have penalties.

        Returns:
            What `record` takes; None where there are no penalties.
        """
        rows = [row for row, plan in enumerate(plans) if self.used(plan)]
        if not rows:
            return None
        entries = self._entries(rows, [slots[row] for row in rows])
        values = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in (plans[row] for row in rows)]
        parameters = to_device(np.array(values, np.float32).T.copy(), self._device)
        repetition, frequency, presence = parameters[:, entries.owners]
        counts = self._counts.view(-1)[entries.places]
        at = entries.rows[entries.owners], entries.token_ids
        before = edits.read(*at)
        after = torch.where(before > 0, before / repetition, before * repetition)
        after = after - counts * frequency - (counts > 0) * presence
        edits.write(*at, torch.where(before.isfinite(), after.clamp_(-_MOST, _MOST), before))
        return entries

    def record(self, entries: Entries, token_ids: torch.Tensor) -> None:
        """Counts the tokens just sampled.

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
        self._ids[at], self._counts[at] = tokens, most
        for slot in entries.slots:
            self._lengths[slot] += 1

    def _entries(self, rows: list[int], slots: list[int]) -> Entries:
        """Those of the rows, with room for one more each."""
        lengths = np.array([self._lengths[slot] for slot in slots])
        self._reserve(int(lengths.max()) + 1)
        owners = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        places = to_device(np.array(slots)[owners] * self._ids.shape[1] + within, self._device)
        return Entries(
            slots,
            to_device(rows, self._device),
            to_device(owners, self._device),
            places,
            self._ids.view(-1)[places],
        )

    def _reserve(self, columns: int) -> None:
        """Widens the tables; rarely, for their width doubles."""
        have = self._ids.shape[1]
        if columns > have:
            more = max(_COLUMNS, 2 * have, columns) - have
            self._ids, self._counts = (
                torch.nn.functional.pad(table, (0, more)).contiguous() for table in (self._ids, self._counts)
            )
