"""The contract of every connector, tested on a cache whose blocks hold their tokens. Add a new one to CONNECTORS."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.block_stores.shared_storage import SharedStorage as StorageStore
from engine_svc.block_stores.tiers import Tiers as TierStores
from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.connectors.pulled_storage import PulledStorage, Puller
from engine_svc.kv_cache.connectors.shared_storage import SharedStorage
from engine_svc.kv_cache.connectors.tiers import Tiers
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.kv_cache.prefix import Prefix
from engine_svc.plan import NO_TRANSFERS
from quire.block_hash import extend_hashes
from quire.options.cache import CacheOptions
from tests.support.fake_executor import FakeHostMemory
from tests.support.remote_connector import Fare, Remote, RemoteConnector, list_store

BLOCK = 4
NONSENSE = ["nonsense"]
Make = Callable[[list[Any]], tuple[KvConnector, BlockStore]]


def host(num_blocks: int) -> Make:
    return lambda memory: (HostTier(num_blocks), FakeHostMemory(memory, num_blocks))


def remote(load: Callable[[int], Fare], save: Callable[[int], Fare] = lambda key: Fare(key % 3)) -> Make:
    def make(memory: list[Any]) -> tuple[KvConnector, BlockStore]:
        place = Remote(load=load, save=save, wait_seconds=20)
        return RemoteConnector(place), list_store(place, NONSENSE)(memory)

    return make


class ListBlocks:
    """A cache that is a list of blocks, which are lists, as bytes."""

    def __init__(self, memory: list[Any]) -> None:
        self._memory = memory

    def num_bytes(self, block_id: int) -> int:
        return 256

    def leave(self, block_ids: Sequence[int]) -> Callable[[], Iterator[Iterable[memoryview]]]:
        contents = [json.dumps(self._memory[block]).ljust(256).encode() for block in block_ids]
        return lambda: iter([[memoryview(content)] for content in contents])

    def enter(self, contents: Sequence[bytearray], block_ids: Sequence[int]) -> Callable[[], None]:
        def write() -> None:
            for content, block in zip(contents, block_ids, strict=True):
                self._memory[block] = json.loads(content)

        return write


class AtOnce(Executor):
    """Runs what it is given in the caller's thread."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*given, **named))
        return future


class Nobody:
    """No worker has anything to pull."""

    def pull(self, source: str, namespace: str, names: Sequence[BlockName], seconds: float) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future


def storage(max_gib: float, puller: Puller | None = None) -> Make:
    def make(memory: list[Any]) -> tuple[KvConnector, BlockStore]:
        folder = tempfile.mkdtemp(dir=FOLDER.name)
        extra = {"shared_storage_path" if puller is None else "local_storage_path": folder, "max_gib": max_gib}
        name = "SharedStorageConnector" if puller is None else "GrpcConnector"
        config = CacheOptions(kv_transfer_config={"kv_connector": name, "kv_connector_extra_config": extra}).transfer()
        files = BlockFiles(config.kv_connector_extra_config.folder, 0, max_gib * 2**30)
        alike = "alike".__str__
        connector = SharedStorage(config, alike) if puller is None else PulledStorage(config, alike, puller)
        return connector, StorageStore(ListBlocks(memory), files, AtOnce(), AtOnce())

    return make


def tiers(*makers: Make) -> Make:
    def make(memory: list[Any]) -> tuple[KvConnector, BlockStore]:
        connectors, stores = zip(*(each(memory) for each in makers), strict=True)
        return Tiers(connectors), TierStores(stores)

    return make


FOLDER = tempfile.TemporaryDirectory()
CONNECTORS: dict[str, Make] = {
    "host": host(60),
    "shared-storage": storage(1),
    "pulled-storage": storage(1, Nobody()),
    "remote": remote(lambda key: Fare(key % 4)),
    "host-and-storage": tiers(host(4), storage(1)),
    "pulled-and-shared-storage": tiers(storage(3000 / 2**30, Nobody()), storage(1)),
}
# Connectors that cannot keep, or deliver, everything they are asked for.
POOR: dict[str, Make] = {
    "small-storage": storage(3000 / 2**30),
    "small-host": host(3),
    "host-and-remote-in-part": tiers(host(8), remote(lambda key: Fare(key % 4, most=key % 3))),
    "three-tiers": tiers(host(3), storage(3000 / 2**30, Nobody()), remote(lambda key: Fare(key % 3, most=key % 4))),
    "remote-in-part": remote(lambda key: Fare(key % 4, most=key % 3)),
    "remote-never": remote(lambda key: Fare(None, lingers=key % 3), save=lambda key: Fare(key % 5, most=key % 2)),
}


class Worker:
    """A manager and the blocks that it manages; each block holds what was written to it."""

    def __init__(self, make: Make, num_blocks: int = 8, windows: tuple[int | None, ...] = (None,)) -> None:
        num_blocks *= len(windows)
        self.contents: list[Any] = [NONSENSE] * num_blocks
        self.connector, self.store = make(self.contents)
        self.now = 0.0
        facts = KvCacheFacts(
            num_blocks=num_blocks, block_size=BLOCK, max_num_batched_tokens=64, windows=windows, block_bytes=1
        )  # fmt: skip
        self.manager = KvCacheManager(facts, CacheOptions(), self.connector, lambda: self.now)
        self.arrived: list[BlockTable] = []

    def step(self) -> None:
        """Runs what precedes the computation of a step and reports what has ended; advances the time."""
        self.now += 1
        self.store.begin(self.manager.take_transfers())
        self.manager.end_transfers(self.store.take_ended())
        self.arrived += self.manager.take_arrivals()

    def settle(self) -> None:
        for _ in range(100):
            if not self.manager.is_transferring:
                return
            self.step()
        raise AssertionError("a transfer does not end")

    def begin(self, tokens: list[int]) -> BlockTable:
        """Returns a table as long as the tokens, with whatever is found of them on the device or elsewhere."""
        table = BlockTable()
        found = self.manager.lookup(table, tokens)
        if found.is_awaited:
            self.manager.await_blocks(table, found)
            while table not in self.arrived:
                self.step()
            self.arrived.remove(table)
            self.settle()  # blocks that did not arrive are returned when the transfer has ended
            found = Prefix() if len(table) else self.manager.lookup(table, tokens)
            assert not found.is_awaited, "a sequence waits once"
        assert self.manager.allocate(table, len(tokens), found) is not None
        self.step()
        return table

    def compute(self, table: BlockTable, tokens: list[int], first: int) -> None:
        """Computes all blocks from block `first` on."""
        for group, block_ids in enumerate(table.block_ids):
            for index, block in enumerate(block_ids[first:], start=first):
                self.contents[block] = [group, *tokens[: (index + 1) * BLOCK]]
        self.manager.book(table, tokens, len(tokens))

    def run(self, tokens: list[int]) -> int:
        """Computes what is not found of these tokens, and frees the sequence; returns how many blocks were found."""
        table = self.begin(tokens)
        found = table.num_findable
        self.verify(table, tokens, found)
        self.compute(table, tokens, found)
        self.manager.free(table)
        self.settle()
        self.manager.check([])
        return found

    def verify(self, table: BlockTable, tokens: list[int], count: int) -> None:
        for group, (block_ids, released) in enumerate(zip(table.block_ids, table.num_released, strict=True)):
            for index, block in enumerate(block_ids[released:count], start=released):
                assert self.contents[block] == [group, *tokens[: (index + 1) * BLOCK]]


PROMPTS = [list(range(start, start + 25)) for start in (0, 100, 200)]


# Groups of layers: with full attention, with windows, or both.
WINDOWS: list[tuple[int | None, ...]] = [(None,), (6,), (None, 9, 3)]


@pytest.fixture(params=WINDOWS, ids=str)
def windows(request: pytest.FixtureRequest) -> tuple[int | None, ...]:
    found: tuple[int | None, ...] = request.param
    return found


@pytest.fixture(params=[*CONNECTORS, *POOR])
def any_worker(request: pytest.FixtureRequest, windows: tuple[int | None, ...]) -> Iterator[Worker]:
    worker = Worker((CONNECTORS | POOR)[request.param], windows=windows)
    yield worker
    worker.settle()
    worker.manager.check([])
    assert worker.manager.num_used_blocks == 0


@pytest.fixture(params=sorted(CONNECTORS))
def worker(request: pytest.FixtureRequest, windows: tuple[int | None, ...]) -> Worker:
    return Worker(CONNECTORS[request.param], windows=windows)


def test_what_the_device_has_forgotten_comes_back(worker: Worker) -> None:
    assert [worker.run(prompt) for prompt in PROMPTS] == [0, 0, 0]
    assert [worker.run(prompt) for prompt in PROMPTS] == [6, 6, 6]


def test_what_comes_is_right_however_little_of_it(any_worker: Worker) -> None:
    for _ in range(3):
        for prompt in PROMPTS:
            assert any_worker.run(prompt) <= 6


def test_finding_changes_nothing(any_worker: Worker) -> None:
    for prompt in PROMPTS:
        any_worker.run(prompt)
    hashes: list[bytes] = []
    extend_hashes(hashes, PROMPTS[0], BLOCK, "")
    for group in range(len(any_worker.manager.lookup(BlockTable(), PROMPTS[0]).block_ids)):
        count = any_worker.connector.num_leading(hashes, group)
        assert all(any_worker.connector.has(BlockName(each, group)) for each in hashes[:count])
        assert any_worker.connector.num_leading(hashes, group) == count
        assert any_worker.connector.num_leading([b"unheard of", *hashes], group) == 0
    assert any_worker.manager.take_transfers() == NO_TRANSFERS


def test_transfers_are_handed_over_once(worker: Worker) -> None:
    for prompt in PROMPTS:
        worker.run(prompt)
    table = BlockTable()
    found = worker.manager.lookup(table, PROMPTS[0])
    if found.is_awaited:
        worker.manager.await_blocks(table, found)
    else:
        worker.manager.allocate(table, len(PROMPTS[0]), found)
    transfers = worker.manager.take_transfers()
    assert sum(len(load.block_ids) for load in transfers.loads) == len(found.names(table.hashes)) > 0
    assert {len(each.block_ids) - len(each.places) for each in (*transfers.saves, *transfers.loads)} == {0}
    assert worker.manager.take_transfers() == NO_TRANSFERS


def test_after_a_failed_step_nothing_of_before_is_found(any_worker: Worker) -> None:
    for prompt in PROMPTS:
        any_worker.run(prompt)
    waiting = BlockTable()
    found = any_worker.manager.lookup(waiting, PROMPTS[0])
    if found.is_awaited:
        any_worker.manager.await_blocks(waiting, found)
    any_worker.manager.clear()
    assert len(any_worker.manager.lookup(BlockTable(), PROMPTS[0])) == 0
    any_worker.settle()
    assert any_worker.manager.take_arrivals() or any_worker.arrived or not found.is_awaited
    any_worker.manager.free(waiting)
    assert [any_worker.run(prompt) for prompt in PROMPTS] == [0, 0, 0]


def test_who_does_not_wait_any_more_frees_all_once_the_transfer_has_ended(any_worker: Worker) -> None:
    for prompt in PROMPTS:
        any_worker.run(prompt)
    for steps in range(4):
        table = BlockTable()
        found = any_worker.manager.lookup(table, PROMPTS[0])
        if not found.is_awaited:
            return
        any_worker.manager.await_blocks(table, found)
        for _ in range(steps):
            any_worker.step()
        any_worker.manager.abandon(table)
        any_worker.manager.free(table)
        any_worker.manager.check([])
        any_worker.settle()
        assert any_worker.manager.num_used_blocks == 0


class ConnectorMachine(RuleBasedStateMachine):
    """Tables begin, wait, are extended, abandoned and freed, with connectors that deliver late, in part or never."""

    @initialize(
        name=st.sampled_from(sorted(CONNECTORS | POOR)), num_blocks=st.integers(6, 12),
        windows=st.sampled_from(WINDOWS),
    )  # fmt: skip
    def start(self, name: str, num_blocks: int, windows: tuple[int | None, ...]) -> None:
        self.worker = Worker((CONNECTORS | POOR)[name], num_blocks, windows)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.waiting: list[tuple[BlockTable, list[int]]] = []

    @rule(length=st.integers(1, 20), start=st.integers(0, 1))
    def begin(self, length: int, start: int) -> None:
        table, tokens = BlockTable(), list(range(start, start + length))
        found = self.worker.manager.lookup(table, tokens)
        if not self.worker.manager.has_room(table, length, found):
            return
        if found.is_awaited:
            self.worker.manager.await_blocks(table, found)
            self.waiting.append((table, tokens))
        else:
            assert self.worker.manager.allocate(table, length, found) is not None
            self._compute(table, tokens, len(found))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.worker.step()
        arrived, self.worker.arrived = self.worker.arrived, []
        for table in arrived:
            entry = next(entry for entry in self.waiting if entry[0] is table)
            self.waiting.remove(entry)
            found = Prefix() if len(table) else self.worker.manager.lookup(table, entry[1])
            if self.worker.manager.allocate(table, len(entry[1]), found) is None:
                self.worker.manager.free(table)
            else:
                self._compute(table, entry[1], table.num_findable)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(entry)
        self.worker.manager.abandon(entry[0])
        self.worker.manager.free(entry[0])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.tables))
        self.tables.remove(entry)
        self.worker.manager.free(entry[0])

    @rule()
    def clear(self) -> None:
        self.worker.manager.clear()

    def _compute(self, table: BlockTable, tokens: list[int], found: int) -> None:
        """Computes the table in a step of its own."""
        self.worker.store.begin(self.worker.manager.take_transfers())
        self.worker.verify(table, tokens, found)
        self.worker.compute(table, tokens, found)
        self.worker.manager.end_transfers(self.worker.store.take_ended())
        self.tables.append((table, tokens))

    @invariant()
    def nothing_is_lost_or_overwritten(self) -> None:
        if hasattr(self, "worker"):
            self.worker.manager.check([table for table, _ in (*self.tables, *self.waiting)])
            for table, tokens in self.tables:
                self.worker.verify(table, tokens, len(table))

    def teardown(self) -> None:
        if hasattr(self, "worker"):
            for _ in range(25):  # past every deadline
                self.step(1)
            assert not self.waiting
            for table, _ in self.tables:
                self.worker.manager.free(table)
            self.worker.settle()
            assert self.worker.manager.num_used_blocks == 0


TestConnectorMachine = ConnectorMachine.TestCase
TestConnectorMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
