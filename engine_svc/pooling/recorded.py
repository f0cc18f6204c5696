"""Records the kernel calls of pooling steps once, and replays them.

For a short sentence, Python and torch take as long between the kernels as all kernels together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_svc.native.library import Kernels
from engine_svc.pooling.inputs import FlatBatch, InputBuffers, Inputs, Room
from engine_svc.runner.native_calls import PassSize, SizedPass, arena_memory


class RecordedPass:
    """The recorded passes of one model, used by one thread. Inputs are in buffers at fixed addresses."""

    def __init__(self, forward: Callable[[Inputs], torch.Tensor], kernels: Kernels, room: Room) -> None:
        """
        Args:
            forward: runs a pass; returns hidden states [tokens, hidden_size].

        Raises:
            NotRecordable: see SizedPass.
        """
        self._buffers = buffers = InputBuffers(room)
        self._pass = SizedPass(
            lambda size: forward(buffers.views(size.sequences, size.tokens)), kernels,
            (room.sequences, room.tokens), arena_memory(),
        )  # fmt: skip

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """Hidden states [tokens, hidden_size], valid until the next step. None if the batch does not fit."""
        if not self._buffers.fits(batch):
            return None
        self._buffers.fill(batch)
        tokens = len(batch.token_ids)
        return self._pass.run(PassSize(len(batch.lengths), tokens, tokens))
