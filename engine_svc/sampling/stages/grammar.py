"""The tokens that a grammar lets come next."""

from __future__ import annotations

import numpy as np
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.transfer import to_device


class GrammarMask(LogitsStage):
    """Makes all tokens impossible but those of the row's mask. A row without one is of a sequence that has ended."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        return sequence.plan.follows_grammar

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        if rows.masks is None:
            return
        place = {slot: index for index, slot in enumerate(rows.masks.slots)}
        masked = [(row, place[slot]) for row, slot in zip(rows.rows, rows.slots, strict=True) if slot in place]
        if not masked:
            return
        width = -(-self._vocab_size // 32) * 4
        packed = np.frombuffer(rows.masks.bits, np.uint8).reshape(len(place), width)
        chosen = packed[[index for _, index in masked]]
        edits.mask(to_device([row for row, _ in masked], edits.device), self._unpack(to_device(chosen, edits.device)))

    def _unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """From uint8 [rows, bytes] to bool [rows, vocabulary]."""
        return (packed[:, :, None] & self._bits).flatten(1)[:, : self._vocab_size] != 0
