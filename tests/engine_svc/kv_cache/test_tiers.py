"""Host memory and other places together: who gives which block, and when a transfer has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.connectors.tiers import Tiers
from engine_svc.kv_cache.events import Tier
from engine_svc.kv_cache.prefix import Hits, Prefix
from engine_svc.plan import EndedTransfer
from tests.conformance.test_connectors import BLOCK, PROMPTS, Worker, host, tiers
from tests.support.remote_connector import Remote, RemoteConnector, list_store, place_of

NAMES = [BlockName(bytes([number])) for number in range(6)]
IN_MEMORY = (1, 2, 4)  # of the blocks in NAMES


class Places:
    """Host memory with a few blocks, and remote stores with others."""

    def __init__(self, *others: Sequence[int]) -> None:
        self.memory = HostTier(8)
        for index in IN_MEMORY:
            self.memory.keep(NAMES[index], 100 + index)
        self.memory.take_transfers()
        stores = [Remote(blocks={place_of(NAMES[index]): None for index in each}, wait_seconds=5) for each in others]
        self.tiers = Tiers([self.memory, *map(RemoteConnector, stores)])

    def load(self, key: int) -> dict[int, list[int]]:
        """Loads all NAMES; the blocks of the device that each transfer writes, by its key."""
        self.tiers.pin(NAMES)
        self.tiers.load(key, NAMES, range(6))
        return {each.key: list(each.block_ids) for each in self.tiers.take_transfers().loads}


def test_a_block_comes_from_the_nearest_place() -> None:
    places = Places([0, 1, 3], [0, 3, 4, 5])
    assert [places.tiers.has(each) for each in NAMES] == [True] * 6
    assert places.tiers.num_leading([each.block_hash for each in NAMES], 0) == 6
    assert places.tiers.wait_seconds([NAMES[index] for index in IN_MEMORY]) is None
    assert places.tiers.wait_seconds(NAMES) == 5
    assert places.load(key=7) == {0: [1, 2, 4], 7 * 3 + 1: [0, 3], 7 * 3 + 2: [5]}


@pytest.mark.parametrize(
    ("moved", "count"), [((2, 1), 6), ((2, 0), 5), ((1, 1), 3), ((1, 0), 3), ((0, 1), 0), ((0, 0), 0)]
)
def test_a_load_brings_what_is_before_the_first_gap(moved: tuple[int, int], count: int) -> None:
    """Blocks 1, 2 and 4 come from memory, 0 and 3 from one place, 5 from another one; each may bring fewer."""
    tiers = (places := Places([0, 3], [5])).tiers
    places.load(key=7)
    assert tiers.ended([EndedTransfer(23, moved[1])]) == []
    assert tiers.ended([EndedTransfer(23, 0)]) == [], "it has crossed with a cancellation"
    assert tiers.ended([EndedTransfer(22, moved[0])]) == [EndedTransfer(7, count)]
    assert tiers.ended([EndedTransfer(22, 0)]) == []


def test_only_what_has_not_ended_is_canceled() -> None:
    places = Places([0, 3], [5])
    places.load(key=7)
    places.tiers.ended([EndedTransfer(22, 2)])
    places.tiers.cancel(7)
    assert places.tiers.take_transfers().cancelled == [23]


def test_a_save_goes_where_it_is_wanted_and_has_ended_everywhere() -> None:
    tiers = Places([0, 1, 2], [2, 3]).tiers
    wanted = tiers.wants(NAMES)
    assert list(wanted) == [0, 1, 3, 4, 5]
    tiers.save(7, [NAMES[index] for index in wanted], [10 + index for index in wanted])
    saves = {each.key: list(each.block_ids) for each in tiers.take_transfers().saves}
    assert saves == {22: [13, 14, 15], 23: [10, 11, 14, 15]}
    assert [tiers.is_saved(each) for each in NAMES] == [False, False, True, False, False, False]
    assert tiers.ended([EndedTransfer(22, 3)]) == []
    assert [each.key for each in tiers.ended([EndedTransfer(23, 1)])] == [7]


def remote(store: Remote) -> Any:
    return lambda memory: (RemoteConnector(store), list_store(store, ["nonsense"])(memory))


def lookup(worker: Worker, may_await: bool = True) -> Prefix:
    return worker.manager.lookup(BlockTable(), PROMPTS[0], may_await)


def test_a_prompt_is_found_place_by_place() -> None:
    """The device has room for 8 blocks, host memory for 10, and the remote store has all 18 of three prompts.

    A prompt is forgotten from its end, on the device and in host memory, whatever was still being saved.
    """
    worker = Worker(tiers(host(10), remote(Remote())))
    for prompt in PROMPTS:
        worker.run(prompt)
    assert lookup(worker).hits == Hits(memory=5, elsewhere=1)
    told = worker.manager.contents().hashes[Tier.HOST]
    assert len(told) == worker.manager.num_used_host_blocks == worker.manager.num_host_blocks == 10, "routers know them"
    worker.run(PROMPTS[0][: 2 * BLOCK + 1])
    assert lookup(worker).hits == Hits(device=2, memory=1, elsewhere=3)
    assert lookup(worker, may_await=False).hits == Hits(device=2, memory=1), "what need not be waited for"
    assert not lookup(worker, may_await=False).is_awaited
    moved = dict(worker.manager.moved_bytes)
    table = worker.begin(PROMPTS[0])
    worker.verify(table, PROMPTS[0], 6)
    assert table.hits == Hits(device=2, memory=1, elsewhere=3)
    change = {name: count - moved.get(name, 0) for name, count in worker.manager.moved_bytes.items()}
    assert (change["host_loaded_bytes"], change["storage_loaded_bytes"]) == (1, 3)


def test_blocks_from_elsewhere_go_on_to_host_memory() -> None:
    """One worker has computed the prompt; where another one has loaded and then forgotten it, its memory has it."""
    store = Remote()
    Worker(tiers(host(1), remote(store))).run(PROMPTS[0])
    worker = Worker(tiers(host(60), remote(store)))
    assert worker.run(PROMPTS[0]) == 6
    store.blocks.clear()
    for prompt in PROMPTS[1:]:
        worker.run(prompt)
    assert lookup(worker).hits.memory > 0
    assert lookup(worker).hits.total == len(PROMPTS[0]) // BLOCK
