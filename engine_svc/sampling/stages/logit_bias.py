"""Logit biases of single tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import Ids, checked_ids, places
from engine_svc.transfer import to_device


class LogitBias(LogitsStage):
    """Adds `logit_bias` to the logits."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._wanted: dict[int, tuple[Ids, npt.NDArray[np.float32]]] = {}  # slot → (ids, their biases)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        wanted = sequence.plan.parameters.logit_bias
        if wanted:
            ids = checked_ids([token_id for token_id, _ in wanted], self._vocab_size)
            self._wanted[slot] = ids, np.array([bias for _, bias in wanted], np.float32)
        return bool(wanted)

    def apply(self, edits: LogitEdits, rows: StageRows) -> None:
        """See LogitsStage.apply."""
        wanted = [self._wanted[slot] for slot in rows.slots]
        at = places(rows.rows, [ids for ids, _ in wanted], edits.device)
        bias = to_device(np.concatenate([bias for _, bias in wanted]), edits.device)
        edits.write(*at, edits.read(*at) + bias)
