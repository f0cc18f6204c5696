"""Restricts a sequence to allowed tokens."""

from __future__ import annotations

import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import Ids, checked_ids, places
from engine_svc.transfer import to_device


class AllowedTokens(LogitsStage):
    """Forbids all tokens except `allowed_token_ids`."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._wanted: dict[int, Ids] = {}  # by slot

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        wanted = sequence.plan.parameters.allowed_token_ids
        if wanted:
            self._wanted[slot] = checked_ids(wanted, self._vocab_size)
        return bool(wanted)

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        at = places(rows.rows, [self._wanted[slot] for slot in rows.slots], edits.device)
        edits.keep(*at, to_device(rows.rows, edits.device))
