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
        # For each byte of a mask, what the logits of its eight tokens may be at most: one look-up and one comparison
        # for each logit take an eighth of what a fill by a mask of booleans does on a CPU.
        bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
        self._limits = torch.where(bits.bool(), torch.inf, -torch.inf).to(device)
        # Kept from step to step: so much memory, given back and taken anew, costs a CPU more than what is done in it.
        self._room = self._limits.new_empty((0, 8))

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        return sequence.plan.follows_grammar

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        if rows.masks is None:
            return
        # Of each slot, the first of its masks. There is one for each position, in their order.
        first = {slot: index for index, slot in reversed(list(enumerate(rows.masks.slots)))}
        offsets = rows.offsets or [0] * len(rows.rows)
        masked = [
            (row, first[slot] + offset)
            for row, slot, offset in zip(rows.rows, rows.slots, offsets, strict=True)
            if slot in first
        ]
        if not masked:
            return
        width = -(-self._vocab_size // 32) * 4
        given = np.frombuffer(rows.masks.bits, np.uint8).reshape(len(rows.masks.slots), width)
        tokens = edits.tokens
        own = slice(tokens.start // 8, -(-tokens.stop // 8))
        packed = np.full((len(edits.logits), own.stop - own.start), 0xFF, np.uint8)
        packed[[row for row, _ in masked]] = given[[index for _, index in masked], own]
        skipped = tokens.start % 8
        edits.limit(self._unpack(to_device(packed, edits.device))[:, skipped : skipped + len(tokens)])

    def _unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """From uint8 [rows, bytes] to float32 [rows, 8 for each byte], until the next call."""
        count = packed.numel()
        if count > len(self._room):
            self._room = self._limits.new_empty((count, 8))
        limits = torch.index_select(self._limits, 0, packed.flatten().int(), out=self._room[:count])
        return limits.view(len(packed), -1)
