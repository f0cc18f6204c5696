"""Masks of the tokens that a grammar allows next."""

from __future__ import annotations

import numpy as np
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.transfer import to_device


class GrammarMask(LogitsStage):
    """Forbids all tokens outside of the row's mask. Rows without a mask belong to sequences that have ended."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        # For each value of a mask byte, the upper limits of its eight tokens' logits. On a CPU, a lookup and a minimum
        # per logit take an eighth of the time of a fill by a boolean mask.
        bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
        self._limits = torch.where(bits.bool(), torch.inf, -torch.inf).to(device)
        # Kept between steps: on a CPU, freeing and allocating this much memory costs more than the work done in it.
        self._room = self._limits.new_empty((0, 8))

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        return sequence.plan.follows_grammar

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        if rows.masks is None:
            return
        # Index of the first mask of each slot. There is one mask per position, in order.
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
        """Unpacks uint8 [rows, bytes] to limits float32 [rows, 8 * bytes], valid until the next call."""
        count = packed.numel()
        if count > len(self._room):
            self._room = self._limits.new_empty((count, 8))
        limits = torch.index_select(self._limits, 0, packed.flatten().int(), out=self._room[:count])
        return limits.view(len(packed), -1)
