"""KV blocks on their way from the worker that has computed them to the one that continues a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future

import grpc

from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.shared_storage import place_of
from engine_svc.worker import EngineWorker
from quire.block_hash import HASH_BYTES
from quire.errors import FailedPrecondition, InvalidRequest
from quire.options.engine import EngineOptions
from quire.options.kv_transfer import KvTransferConfig
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.v1 import engine_pb2, engine_pb2_grpc

logger = logging.getLogger(__name__)

_PART_BYTES = 2**20
_MOST_RANKS = 4096


async def kv_blocks(
    worker: EngineWorker, request: engine_pb2.PullKvBlocksRequest
) -> AsyncIterator[engine_pb2.PullKvBlocksResponse]:
    """The messages of a PullKvBlocks call; see engine.proto.

    Raises:
        FailedPrecondition, InvalidRequest: see engine.proto.
        Unavailable: the model is still loading.
    """
    config = worker.kv_transfer.remote
    if config is None or not config.saves:
        raise FailedPrecondition(
            "This worker keeps no KV blocks for others: start it with --kv-transfer-config, with kv_connector "
            "GrpcConnector and kv_role kv_producer or kv_both."
        )
    if request.fingerprint != worker.info.fingerprint:
        raise FailedPrecondition("The KV blocks of this worker are of no use to the caller: it computes differently.")
    if not 1 <= request.num_ranks <= _MOST_RANKS:
        raise InvalidRequest(f"num_ranks is {request.num_ranks}; use 1 to {_MOST_RANKS}.", parameter="num_ranks")
    if any(len(block.block_hash) != HASH_BYTES for block in request.blocks):
        raise InvalidRequest(f"Each block_hash must have {HASH_BYTES} bytes.", parameter="blocks")
    ranks = _files(config, request.num_ranks)
    with worker.being_pulled():
        for index, block in enumerate(request.blocks):
            place = place_of(request.fingerprint, BlockName(block.block_hash, block.group))
            for rank, files in enumerate(ranks):
                content = await asyncio.to_thread(files.raw, place) or b""
                for start in range(0, len(content), _PART_BYTES):
                    data = content[start : start + _PART_BYTES]
                    yield engine_pb2.PullKvBlocksResponse(
                        block_index=index, rank=rank, data=data, is_last=start + len(data) == len(content)
                    )


class KvPuller:
    """Copies KV blocks from other workers to this one's folder; see kv_cache/connectors/pulled_storage.py."""

    def __init__(self, config: KvTransferConfig, security: RpcSecurityOptions, num_ranks: int) -> None:
        """To be created in the event loop.

        Args:
            num_ranks: that compute a sequence together.
        """
        self._security = security
        self._ranks = _files(config, num_ranks)
        self._event_loop = asyncio.get_running_loop()

    def pull(self, source: str, namespace: str, names: Sequence[BlockName], seconds: float) -> Future[None]:
        """See Puller."""
        return asyncio.run_coroutine_threadsafe(self._pull(source, namespace, names, seconds), self._event_loop)

    async def _pull(self, source: str, namespace: str, names: Sequence[BlockName], seconds: float) -> None:
        blocks = [engine_pb2.KvBlockName(block_hash=name.block_hash, group=name.group) for name in names]
        request = engine_pb2.PullKvBlocksRequest(fingerprint=namespace, blocks=blocks, num_ranks=len(self._ranks))
        try:
            # A connection for each pull takes milliseconds, and none is left to a worker that is gone.
            async with open_channel(source, self._security) as channel:
                call = engine_pb2_grpc.EngineServiceStub(channel).PullKvBlocks(
                    request, metadata=call_metadata(self._security), timeout=seconds
                )
                await self._receive(call, [place_of(namespace, name) for name in names])
        except grpc.aio.AioRpcError as error:
            logger.warning("KV blocks cannot be pulled from worker %s and are computed: %s", source, error.details())
        except OSError as error:
            logger.warning("KV blocks of worker %s cannot be written and are computed: %s", source, error)

    async def _receive(self, messages: AsyncIterator[engine_pb2.PullKvBlocksResponse], places: Sequence[str]) -> None:
        began_ns = time.time_ns()
        parts: list[bytes] = []
        async for message in messages:
            parts.append(message.data)
            if message.is_last:
                files = self._ranks[message.rank]
                await asyncio.to_thread(files.write_raw, places[message.block_index], parts, began_ns)
                parts = []


def open_puller(options: EngineOptions, security: RpcSecurityOptions) -> KvPuller | None:
    """Returns what pulls KV blocks from other workers; None if the options do not have it."""
    config = options.cache.transfer().remote
    return KvPuller(config, security, options.parallel.num_ranks) if config is not None and config.loads else None


def _files(config: KvTransferConfig, num_ranks: int) -> list[BlockFiles]:
    """The files of each rank in this machine's folder."""
    storage = config.kv_connector_extra_config
    return [BlockFiles(storage.folder, rank, storage.max_gib * 2**30) for rank in range(num_ranks)]
