"""Adapters in host memory, which are read concurrently with steps and fail independently."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_svc.lora.layers import AdapterLayers
from engine_svc.lora.matrices import AdapterMatrices
from engine_svc.lora.settings import AdapterSettings
from engine_svc.lora.store import AdapterStore
from engine_svc.lora.tiles import most_tiles, tiles_of
from engine_svc.ops.plain import PlainOps
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import AdapterChanges, AdapterPlacement
from quire.errors import InvalidRequest
from tests.support.waiting import WAIT_SECONDS


class Reading:
    """A store whose reads block until they are released."""

    def __init__(self) -> None:
        settings = AdapterSettings(2, 4, torch.float32, torch.float32)
        device = torch.device("cpu")
        layers = AdapterLayers(
            settings, PlainOps(), ParallelGroups(), device, lambda module: (module, ""), lambda path, _: (path,)
        )
        self.goes_on = threading.Event()
        self.store = AdapterStore(layers, self._read)

    def _read(self, folder: Path) -> AdapterMatrices:
        assert self.goes_on.wait(WAIT_SECONDS)
        if folder.name == "refused":
            raise InvalidRequest("it is refused")
        if folder.name == "strange":
            raise ZeroDivisionError("strange")
        return AdapterMatrices({}, {})

    def take(self, count: int) -> dict[int, str]:
        """Waits until `count` results are there, and returns them."""
        found: dict[int, str] = {}
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline
            found |= self.store.take_read()
        return found


@pytest.fixture
def reading() -> Iterator[Reading]:
    made = Reading()
    yield made
    made.goes_on.set()
    made.store.close()


def test_one_that_cannot_be_read_leaves_the_others(reading: Reading) -> None:
    reading.goes_on.set()
    reading.store.begin(AdapterChanges(read={1: "good", 2: "refused", 3: "strange", 4: "good"}))
    found = reading.take(4)
    assert (found[1], found[2], found[4]) == ("", "it is refused", "")
    assert found[3] == "strange cannot be read: ZeroDivisionError: strange"
    reading.store.begin(AdapterChanges(placed=[AdapterPlacement(1, 1), AdapterPlacement(2, 4)]))


def test_steps_go_on_while_one_is_read(reading: Reading) -> None:
    reading.store.begin(AdapterChanges(read={1: "good"}))
    assert reading.store.take_read() == {}
    reading.goes_on.set()
    assert reading.take(1) == {1: ""}
    assert reading.store.take_read() == {}


def test_what_is_dropped_while_it_is_read_is_forgotten(reading: Reading) -> None:
    reading.store.begin(AdapterChanges(read={1: "good", 2: "good"}))
    reading.store.begin(AdapterChanges(dropped=[1]))
    reading.goes_on.set()
    assert reading.take(1) == {2: ""}
    with pytest.raises(KeyError):
        reading.store.begin(AdapterChanges(placed=[AdapterPlacement(1, 1)]))


def test_tiles_hold_each_row_once_with_its_own_group() -> None:
    generator = np.random.default_rng(0)
    for count in (1, 5, 16, 17, 100):
        groups = generator.integers(-1, 5, count)
        rows, tile_groups = tiles_of(groups)
        assert len(rows) <= most_tiles(count, 5)
        found = {
            int(row): int(group) for tile, group in zip(rows, tile_groups, strict=True) for row in tile if row >= 0
        }
        assert found == {row: int(group) for row, group in enumerate(groups) if group >= 0}
        for tile in rows:
            assert list(tile >= 0) == sorted(tile >= 0, reverse=True)
