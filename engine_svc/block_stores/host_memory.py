"""Blocks in this worker's host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.block_stores.base import BlockStore
from engine_svc.plan import BlockTransfer, Transfers


class HostMemory(BlockStore):
    """The caches' second tier; a block's place is its number there."""

    def __init__(self, attention: AttentionBackend, caches: Sequence[torch.Tensor], num_blocks: int) -> None:
        self._attention = attention
        self._caches = caches
        self._memory = attention.allocate_host(caches, num_blocks)

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin."""
        for save in transfers.saves:
            self._attention.copy_blocks(self._caches, self._memory, _pairs(save))
        for load in transfers.loads:
            pairs = [(host, device) for device, host in _pairs(load)]
            self._attention.copy_blocks(self._memory, self._caches, pairs)


def _pairs(transfer: BlockTransfer) -> list[tuple[int, int]]:
    """(device block, host block)"""
    return [(block, int(place)) for block, place in zip(transfer.block_ids, transfer.places, strict=True)]
