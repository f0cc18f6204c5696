"""A block store that keeps blocks and saved states in this worker's host memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.movable import Copies, Movable
from engine_svc.plan import BlockTransfer, Transfers
from engine_svc.transfer import Arrival


class _Leaving(NamedTuple):
    """Blocks and states being copied from the device."""

    places: list[int]  # in host memory
    copies: Copies  # on the host once they have arrived
    arrival: Arrival


class HostMemory(BlockStore):
    """Second tier of the prefix cache; the place of a block or state is its number in host memory.

    What is copied from a GPU is put in its place after it has arrived: in a later step, or before any load.
    """

    def __init__(self, device: Movable, num_blocks: int, num_states: int = 0) -> None:
        self._device = device
        self._memory = device.allocate_host(num_blocks, num_states)
        self._leaving: deque[_Leaving] = deque()

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin."""
        self._settle(waits=False)
        for save in transfers.saves:
            copies = self._device.on_host(save.block_ids)
            self._leaving.append(_Leaving(_places(save), copies, Arrival(self._device.device)))
        if transfers.loads:
            self._settle(waits=True)
        for load in transfers.loads:
            self._device.put(self._memory.taken(_places(load)), load.block_ids)

    def _settle(self, *, waits: bool) -> None:
        """Puts what has arrived in its place, in the order in which it left; `waits` for all of it."""
        while self._leaving and (waits or self._leaving[0].arrival.is_over):
            places, copies, arrival = self._leaving.popleft()
            arrival.wait()
            self._memory.put(copies, places)


def _places(transfer: BlockTransfer) -> list[int]:
    return [int(place) for place in transfer.places]
