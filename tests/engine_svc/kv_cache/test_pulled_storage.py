"""Blocks that another worker is said to have: they are pulled before they are loaded, and computed if they are late."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.block_stores.shared_storage import SharedStorage as StorageStore
from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.block_table import BlockTable, Offer
from engine_svc.kv_cache.connectors.pulled_storage import PulledStorage
from engine_svc.kv_cache.connectors.shared_storage import place_of
from engine_svc.kv_cache.prefix import Prefix
from quire.options.cache import CacheOptions
from tests.conformance.test_connectors import BLOCK, AtOnce, ListBlocks, Make, Worker

PROMPT = list(range(25))
OUTPUT = [*PROMPT, *range(50, 57)]  # two more blocks, which the offer leaves out
OFFER = Offer("producer:1", len(PROMPT))
WINDOWS: list[tuple[int | None, ...]] = [(None,), (None, 9, 3)]


@dataclass
class Network:
    """Copies files from one folder to another once it is told to, as far as it is told."""

    producer: Path
    consumer: Path
    asked: list[tuple[str, Sequence[BlockName], Future[None]]] = field(default_factory=list)

    def pull(self, source: str, namespace: str, names: Sequence[BlockName], seconds: float) -> Future[None]:
        future: Future[None] = Future()
        self.asked.append((source, names, future))
        return future

    def deliver(self, most: int = 1000) -> None:
        _, names, future = self.asked[-1]
        for name in names[:most]:
            place = f"quire-kv/{place_of('alike', name)}.0"
            (self.consumer / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.producer / place, self.consumer / place)
        future.set_result(None)


def make(folder: Path, role: str, network: Network) -> Make:
    def made(memory: list[object]) -> tuple[PulledStorage, StorageStore]:
        extra = {"local_storage_path": str(folder)}
        config = {"kv_connector": "GrpcConnector", "kv_role": role, "kv_connector_extra_config": extra}
        connector = PulledStorage(CacheOptions(kv_transfer_config=config).transfer(), lambda: "alike", network)
        files = BlockFiles(folder / "quire-kv", 0, 2**30)
        return connector, StorageStore(ListBlocks(memory), files, AtOnce(), AtOnce())

    return made


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path / "producer", tmp_path / "consumer")


@pytest.fixture(params=WINDOWS, ids=str)
def consumer(request: pytest.FixtureRequest, network: Network) -> Worker:
    """A worker that lacks what a producer has computed of PROMPT."""
    Worker(make(network.producer, "kv_producer", network), windows=request.param).run(PROMPT)
    return Worker(make(network.consumer, "kv_consumer", network), windows=request.param)


def begin(worker: Worker) -> tuple[BlockTable, Prefix]:
    table = BlockTable(offer=OFFER)
    found = worker.manager.lookup(table, OUTPUT)
    assert found.is_awaited and len(found) == len(PROMPT) // BLOCK
    worker.manager.await_blocks(table, found)
    worker.step()
    assert not worker.arrived, "nothing has come yet"
    return table, found


def end(worker: Worker, table: BlockTable) -> None:
    worker.manager.free(table)
    worker.settle()
    worker.manager.check([])
    assert worker.manager.num_used_blocks == 0


def test_a_sequence_begins_with_what_it_was_offered(consumer: Worker, network: Network) -> None:
    """Only what the next token sees is asked for, and what is not offered is not."""
    table, found = begin(consumer)
    ((source, names, _),) = network.asked
    assert (source, list(names)) == ("producer:1", list(found.names(table.hashes)))
    network.deliver()
    consumer.settle()
    assert consumer.arrived == [table]
    consumer.verify(table, OUTPUT, len(PROMPT) // BLOCK)
    end(consumer, table)


def test_the_next_one_needs_to_ask_nobody(consumer: Worker, network: Network) -> None:
    """Neither while the blocks are on the device, nor while they are in the folder."""
    table, _ = begin(consumer)
    network.deliver()
    consumer.settle()
    end(consumer, table)
    consumer.run(list(range(500, 530)))  # displaces the blocks
    assert consumer.run(PROMPT) == len(PROMPT) // BLOCK
    assert len(network.asked) == 1


@pytest.mark.parametrize("most", [0, 3])
def test_what_does_not_come_is_computed(consumer: Worker, network: Network, most: int) -> None:
    table, _ = begin(consumer)
    network.deliver(most)
    consumer.settle()
    assert consumer.arrived == [table] and not len(table)
    found = consumer.manager.lookup(table, OUTPUT)
    assert not found.is_awaited, "a sequence waits once"
    assert consumer.manager.allocate(table, len(OUTPUT), found) is not None
    consumer.verify(table, OUTPUT, table.num_findable)
    end(consumer, table)


@pytest.mark.parametrize("leave", [lambda worker, table: worker.manager.abandon(table),
                                   lambda worker, table: worker.manager.clear()])  # fmt: skip
def test_who_does_not_wait_ends_the_pull(
    consumer: Worker, network: Network, leave: Callable[[Worker, BlockTable], None]
) -> None:
    """An abort, and a failed step."""
    table, _ = begin(consumer)
    leave(consumer, table)
    assert network.asked[0][2].cancelled()
    end(consumer, table)


def test_a_pull_that_never_ends_costs_no_more_than_the_deadline(consumer: Worker, network: Network) -> None:
    table, found = begin(consumer)
    assert found.wait_seconds is not None
    consumer.now += found.wait_seconds
    consumer.step()
    assert consumer.arrived == [table] and not len(table)
    assert network.asked[0][2].cancelled()
    end(consumer, table)


def test_an_offer_is_of_no_use_to_others(consumer: Worker) -> None:
    begin(consumer)
    assert not len(consumer.manager.lookup(BlockTable(), [*PROMPT, 1]))


def test_a_producer_asks_nobody(network: Network) -> None:
    worker = Worker(make(network.producer, "kv_producer", network))
    assert not len(worker.manager.lookup(BlockTable(offer=OFFER), OUTPUT))
