"""Forward passes as the calls of kernels that they come to, noted once for steps of any size.

Between the kernels of a short sentence, Python and torch take as long as all of them together. What a step's size
changes of the calls is how many rows they have: that is found by comparing passes of several sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.native.calls import Calls, NotRecordable, SizedCalls
from engine_svc.native.library import Kernels
from engine_svc.pooling.inputs import FlatBatch, InputBuffers, Inputs, Room
from engine_svc.runner.native_calls import Arena, KernelsAlone

logger = logging.getLogger(__name__)

_ARENA_BYTES = 256 << 20  # of address space: what is never touched takes no memory
_FEWEST_TOKENS = 8  # of a step, for which passes of three sizes can be told apart


class RecordedPass:
    """Of one model; used by one thread. Inputs and what lies between kernels stay where they are."""

    def __init__(self, forward: Callable[[Inputs], torch.Tensor], kernels: Kernels, room: Room) -> None:
        """
        Args:
            forward: a pass; gives hidden states [tokens, hidden_size].

        Raises:
            NotRecordable: it does more than to call kernels, or a step is too small.
        """
        if room.tokens < _FEWEST_TOKENS:
            raise NotRecordable(f"a step of {room.tokens} tokens at most")
        self._buffers = InputBuffers(room)
        memory = zeros_when_touched((_ARENA_BYTES,), torch.uint8)
        sizes = [(1, 3), (min(2, room.sequences), 7), (room.sequences, room.tokens)]
        noted: list[Calls] = []
        for sequences, tokens in sizes:
            arena = Arena(memory, (tokens, room.tokens))
            with kernels.recording(runs=False) as calls, KernelsAlone(arena):
                self._hidden = forward(self._buffers.views(sequences, tokens))
            noted.append(calls)
        self._calls = SizedCalls(noted, sizes)
        self._kept = forward  # the calls point at what it holds
        logger.debug("a step is %d calls of kernels; %d KiB lie between them", calls.count, arena.most >> 10)

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """Hidden states [tokens, hidden_size], until the next step; None for a batch that is too large."""
        if not self._buffers.fits(batch):
            return None
        self._buffers.fill(batch)
        tokens = len(batch.token_ids)
        self._calls.replay((len(batch.lengths), tokens))
        return self._hidden[:tokens]
