"""KV blocks pulled from a worker over a real socket: what arrives is what it has saved, or nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.executor.base import Executor
from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.connectors.shared_storage import place_of
from engine_svc.service.kv_blocks import KvPuller
from quire.errors import FailedPrecondition, InvalidRequest, StartupError
from quire.options.cache import CacheOptions
from quire.options.server import RpcSecurityOptions
from quire.rpc.status import from_rpc_error
from quire.v1 import engine_pb2, engine_pb2_grpc
from tests.support.engine_client import TIMEOUT
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor

NUM_RANKS = 2
LARGE = 2 * 2**20 + 7  # bytes; more than a message has
BLOCKS = {
    BlockName(b"a" * 32): b"first",
    BlockName(b"a" * 32, 1): b"of another group",
    BlockName(b"b" * 32): bytes(LARGE),
    BlockName(b"a" * 32, STATES): b"states",
}
UNKNOWN = BlockName(b"x" * 32)


def grpc_connector(folder: Path, role: str) -> dict[str, Any]:
    extra = {"local_storage_path": str(folder)}
    return {"kv_connector": "GrpcConnector", "kv_role": role, "kv_connector_extra_config": extra}


def files(folder: Path, rank: int) -> BlockFiles:
    return BlockFiles(folder / "quire-kv", rank, 2**30)


@pytest.fixture
async def producer(tmp_path: Path) -> AsyncIterator[RunningEngine]:
    """A worker whose ranks have saved BLOCKS."""
    folder = tmp_path / "producer"
    async with running_engine(kv_transfer_config=grpc_connector(folder, "kv_producer")) as engine:
        for name, content in BLOCKS.items():
            for rank in range(NUM_RANKS):
                files(folder, rank).write(place_of(engine.worker.info.fingerprint, name), [b"%d" % rank, content], 1)
        yield engine


@pytest.fixture
async def puller(tmp_path: Path) -> KvPuller:
    config = CacheOptions(kv_transfer_config=grpc_connector(tmp_path / "consumer", "kv_consumer")).transfer()
    return KvPuller(config, RpcSecurityOptions(), NUM_RANKS)


async def pulled(puller: KvPuller, address: str, namespace: str, *names: BlockName) -> None:
    await asyncio.wrap_future(puller.pull(address, namespace, names, TIMEOUT))


async def test_blocks_arrive_whole_for_each_group_and_rank(
    producer: RunningEngine, puller: KvPuller, tmp_path: Path
) -> None:
    """Those that the producer lacks are left out, and hold up no others."""
    namespace = producer.worker.info.fingerprint
    await pulled(puller, producer.address, namespace, UNKNOWN, *BLOCKS)
    for rank in range(NUM_RANKS):
        for name, content in BLOCKS.items():
            found = files(tmp_path / "consumer", rank).read(place_of(namespace, name), 1 + len(content))
            assert found == b"%d" % rank + content
        assert files(tmp_path / "consumer", rank).raw(place_of(namespace, UNKNOWN)) is None


async def test_what_cannot_be_pulled_is_left_to_the_caller(
    producer: RunningEngine, puller: KvPuller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From a worker that computes something else, and from one that is gone, which may come back."""
    (name, content), *_ = BLOCKS.items()
    namespace = producer.worker.info.fingerprint
    with caplog.at_level(logging.WARNING):
        await pulled(puller, producer.address, "another", name)
        await pulled(puller, "127.0.0.1:1", namespace, name)
    assert [record.args[0] for record in caplog.records if record.args] == [producer.address, "127.0.0.1:1"]
    assert files(tmp_path / "consumer", 0).raw(place_of(namespace, name)) is None
    await pulled(puller, producer.address, namespace, name)
    assert files(tmp_path / "consumer", 0).read(place_of(namespace, name), 1 + len(content))


async def test_a_worker_that_drains_ends_pulls_that_have_begun(
    producer: RunningEngine, puller: KvPuller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, content), *_ = BLOCKS.items()
    namespace, raw = producer.worker.info.fingerprint, BlockFiles.raw
    reads, may_read = threading.Event(), threading.Event()

    def late(self: BlockFiles, place: str) -> bytes | None:
        reads.set()
        may_read.wait(TIMEOUT)
        return raw(self, place)

    monkeypatch.setattr(BlockFiles, "raw", late)
    pull = asyncio.create_task(pulled(puller, producer.address, namespace, name))
    await asyncio.to_thread(reads.wait, TIMEOUT)
    draining = asyncio.create_task(producer.worker.drain())
    await asyncio.wait([draining], timeout=0.05)
    assert not draining.done()
    may_read.set()
    await pull
    await asyncio.wait_for(draining, TIMEOUT)
    assert files(tmp_path / "consumer", 0).read(place_of(namespace, name), 1 + len(content)) == b"0" + content


class _Dying(engine_pb2_grpc.EngineServiceServicer):
    """Is lost in the middle of the second block."""

    async def PullKvBlocks(
        self, request: engine_pb2.PullKvBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.PullKvBlocksResponse]:
        yield engine_pb2.PullKvBlocksResponse(data=b"whole", is_last=True)
        yield engine_pb2.PullKvBlocksResponse(block_index=1, data=b"ha")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


async def test_whole_blocks_are_kept_of_a_worker_that_is_lost(puller: KvPuller, tmp_path: Path) -> None:
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(_Dying(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    names = list(BLOCKS)[:2]
    await pulled(puller, f"127.0.0.1:{port}", "alike", *names)
    await server.stop(0)
    assert [files(tmp_path / "consumer", 0).raw(place_of("alike", name)) for name in names] == [b"whole", None]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fingerprint": "another"}, FailedPrecondition, "computes differently"),
        ({"num_ranks": 0}, InvalidRequest, "num_ranks is 0; use 1 to 4096"),
        ({"blocks": [engine_pb2.KvBlockName(block_hash=b"../")]}, InvalidRequest, "must have 32 bytes"),
    ],
)
async def test_bad_calls_are_refused(
    producer: RunningEngine, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    fields = {"fingerprint": producer.worker.info.fingerprint, "num_ranks": 1} | changes
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await producer.stub.PullKvBlocks(engine_pb2.PullKvBlocksRequest(**fields), timeout=TIMEOUT).read()
    refusal = from_rpc_error(caught.value)
    assert isinstance(refusal, error)
    assert message in refusal.message


async def test_only_producers_are_asked() -> None:
    async with running_engine() as engine:
        request = engine_pb2.PullKvBlocksRequest(fingerprint=engine.worker.info.fingerprint, num_ranks=1)
        with pytest.raises(grpc.aio.AioRpcError, match="kv_role kv_producer or kv_both"):
            await engine.stub.PullKvBlocks(request, timeout=TIMEOUT).read()


class _Scattered(FakeExecutor):
    spans_machines = True


async def test_ranks_on_other_machines_are_refused(tmp_path: Path) -> None:
    """Their files would be found by nobody."""
    executor: Executor = _Scattered()
    with pytest.raises(StartupError, match="use --distributed-executor-backend mp"):
        async with running_engine(executor, kv_transfer_config=grpc_connector(tmp_path, "kv_producer")):
            pass
