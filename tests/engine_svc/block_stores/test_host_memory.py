"""Blocks copied from the device to host memory, which arrive asynchronously."""

from __future__ import annotations

import pytest
import torch

from engine_svc.attention.base import AttentionShape
from engine_svc.attention.registry import create_backend
from engine_svc.block_stores.host_memory import HostMemory
from engine_svc.block_stores.movable import Items, Movable
from engine_svc.plan import NO_TRANSFERS, BlockTransfer, Transfers

SHAPE = AttentionShape(2, 1, 8, 4, torch.float32, torch.device("cpu"))


class SlowArrival:
    """The arrival of a copy that completes when a test says so, or when it is waited for."""

    def __init__(self, _: torch.device) -> None:
        self.is_over = False
        self.waits = 0
        ARRIVALS.append(self)

    def wait(self) -> None:
        self.waits += not self.is_over
        self.is_over = True


ARRIVALS: list[SlowArrival] = []


def values_of(cache: torch.Tensor, blocks: list[int], dimension: int) -> list[float]:
    return [float(cache.select(dimension, block).flatten()[0]) for block in blocks]


@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_blocks_are_put_to_their_places_once_they_have_arrived(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr("engine_svc.block_stores.host_memory.Arrival", SlowArrival)
    ARRIVALS.clear()
    attention = create_backend(backend, SHAPE, None)
    caches = attention.allocate(6, 2)
    for layer, cache in enumerate(caches):
        for block in range(6):
            cache.select(attention.block_dimension, block).fill_(10 * layer + block)
    at = attention.block_dimension
    store = HostMemory(Movable(Items(caches, at), Items((), 0), 6, SHAPE.device), 4)

    def kept() -> list[list[float]]:
        return [values_of(memory, [0, 1, 2], at) for memory in store._memory.blocks.tensors]

    for memory in store._memory.blocks.tensors:
        memory.zero_()
    store.begin(Transfers(saves=[BlockTransfer([3, 1], [0, 2])]))
    for cache in caches:
        cache.select(at, 3).fill_(-1)  # reused by another sequence meanwhile
    store.begin(Transfers(saves=[BlockTransfer([4], [0])]))
    store.begin(NO_TRANSFERS)
    assert kept() == [[0, 0, 0]] * 2
    ARRIVALS[0].is_over = True
    store.begin(NO_TRANSFERS)
    assert kept() == [[3, 0, 1], [13, 0, 11]]
    store.begin(Transfers(loads=[BlockTransfer([5, 0], [0, 2])]))  # one of them has not arrived yet
    assert kept() == [[4, 0, 1], [14, 0, 11]]
    assert [values_of(cache, [0, 1, 2, 3, 4, 5], at) for cache in caches] == [
        [1, 1, 2, -1, 4, 4], [11, 11, 12, -1, 14, 14],
    ]  # fmt: skip
    assert [arrival.waits for arrival in ARRIVALS] == [0, 1]
