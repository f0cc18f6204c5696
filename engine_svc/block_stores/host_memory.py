"""A block store that keeps blocks in this worker's host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.block_stores.base import BlockStore
from engine_svc.plan import BlockTransfer, Transfers
from engine_svc.transfer import Arrival


class _Leaving(NamedTuple):
    """Blocks being copied from the device."""

    places: list[int]  # host blocks that they are for
    blocks: list[torch.Tensor]  # one tensor per layer, on the host once they have arrived
    arrival: Arrival


class HostMemory(BlockStore):
    """Second tier of the KV caches; a block's place is its number in host memory.

    Blocks copied from a GPU are put in their places after they have arrived: in a later step, or before any load.
    """

    def __init__(self, attention: AttentionBackend, caches: Sequence[torch.Tensor], num_blocks: int) -> None:
        self._attention = attention
        self._caches = caches
        self._memory = attention.allocate_host(caches, num_blocks)
        self._leaving: deque[_Leaving] = deque()

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin."""
        self._settle(waits=False)
        for save in transfers.saves:
            blocks = self._attention.blocks_on_host(self._caches, save.block_ids)
            self._leaving.append(_Leaving(_places(save), blocks, Arrival(self._attention.shape.device)))
        if transfers.loads:
            self._settle(waits=True)
        for load in transfers.loads:
            self._attention.load_blocks(self._memory, _places(load), self._caches, load.block_ids)

    def _settle(self, *, waits: bool) -> None:
        """Puts blocks that have arrived in their places, in the order in which they left; `waits` for all of them."""
        while self._leaving and (waits or self._leaving[0].arrival.is_over):
            places, blocks, arrival = self._leaving.popleft()
            arrival.wait()
            self._attention.put_blocks(blocks, self._memory, places)


def _places(transfer: BlockTransfer) -> list[int]:
    return [int(place) for place in transfer.places]
