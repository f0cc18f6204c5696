"""Suppresses ending tokens until a sequence is long enough."""

from __future__ import annotations

import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import Ids, checked_ids, places


class MinimumTokens(LogitsStage):
    """Forbids the tokens that would end a sequence until `min_tokens` are generated."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._wanted: dict[int, tuple[Ids, int]] = {}  # slot → (ids, sequence length until which they are forbidden)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        ids = checked_ids(sequence.plan.suppress_token_ids, self._vocab_size)
        end = sequence.num_prompt_tokens + sequence.plan.parameters.min_tokens
        self._wanted[slot] = ids, end
        return len(ids) > 0 and len(sequence.token_ids) < end

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        some = [
            (row, self._wanted[slot][0])
            for row, slot, known in zip(rows.rows, rows.slots, rows.num_tokens, strict=True)
            if known < self._wanted[slot][1]
        ]
        if some:
            at = places([row for row, _ in some], [ids for _, ids in some], edits.device)
            edits.write(*at, torch.full(at[0].shape, -torch.inf, device=edits.device))
