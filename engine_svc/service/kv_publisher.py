"""Publishes prefix cache events over ZeroMQ in vLLM's format, for routers that read it (llm-d, Dynamo, AIBrix).

A message has three frames: topic, number of the batch (8 bytes, big-endian, from 0), and the batch in MessagePack. A
subscriber that has missed some sends the first number it wants to the replay socket, which answers with all batches
from there on that are kept, and with one numbered -1 as the end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine_svc.kv_cache.events import BlockContent, BlocksRemoved, BlocksStored, CacheCleared, KvEvent, Tier
from engine_svc.worker import EngineWorker
from quire.errors import StartupError
from quire.extras import needed
from quire.options.kv_events import KvEventsConfig

logger = logging.getLogger(__name__)

_FLAG = "--kv-events-config"
_MEDIUMS = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}  # as vLLM calls them, on every device
_END = (-1).to_bytes(8, "big", signed=True)
_REQUEST_FRAMES = 3  # who asks, an empty one, and the number


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that became findable, each the child of the one before it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]  # of all these blocks; empty for host memory
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    # For each block, what its hash covers beside the tokens: the adapter's name, and in the first one the cache salt.
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that are no longer findable in this memory."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """Nothing is cached any more."""


class Batch(msgspec.Struct, array_like=True):
    """The events of one step."""

    ts: float  # seconds since the epoch
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


class KvPublisher:
    """The sockets, and the batches that are kept for subscribers that have missed some."""

    def __init__(self, config: KvEventsConfig, worker: EngineWorker) -> None:
        """
        Args:
            worker: one that has loaded.

        Raises:
            StartupError: pyzmq is not installed, or an address is malformed or taken.
        """
        with needed(_FLAG, "pyzmq", "kv-events"):
            import zmq
            import zmq.asyncio
        self._worker = worker
        self._rank = worker.info.data_parallel_rank or 0
        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)  # numbers and batches
        self._context = zmq.asyncio.Context()
        self._publishing = self._context.socket(zmq.PUB)
        self._publishing.set_hwm(config.hwm)
        self._replaying = self._context.socket(zmq.ROUTER) if config.replay_endpoint else None
        try:
            self._open(self._publishing, config.endpoint)
            if self._replaying is not None and config.replay_endpoint:
                self._open(self._replaying, config.replay_endpoint, listens=True)
        except (zmq.ZMQError, ValueError) as error:
            self._context.destroy(linger=0)
            raise StartupError(
                f"{_FLAG}: {config.endpoint} or {config.replay_endpoint} cannot be used: {error}. Set other endpoints; "
                "each worker of a machine needs its own."
            ) from error
        logger.info("publishing KV events, with the tokens of all prompts, at %s", config.endpoint)

    def _open(self, socket: Any, endpoint: str, *, listens: bool = False) -> None:
        address = endpoint_of(endpoint, self._rank)
        if listens or "*" in address or "::" in address or address.startswith(("ipc://", "inproc://")):
            socket.bind(address)
        else:
            socket.connect(address)

    async def run(self) -> None:
        """Publishes and answers until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                if self._replaying is not None:
                    group.create_task(self._replay(self._replaying))
        finally:
            self._context.destroy(linger=0)

    async def _publish(self) -> None:
        log, wanted = self._worker.loop.kv_events, 1
        while True:
            await log.wait(wanted)
            for batch in log.since(wanted):
                payload = msgspec.msgpack.encode(self._batch(batch.changes.events))
                number = (batch.sequence - 1).to_bytes(8, "big")
                self._kept.append((number, payload))
                await self._publishing.send_multipart((self._topic, number, payload))
                wanted = batch.sequence + 1

    async def _replay(self, socket: Any) -> None:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != _REQUEST_FRAMES:
                logger.warning("a replay request has %d frames instead of %d", len(frames), _REQUEST_FRAMES)
                continue
            who, _, first = frames
            for number, payload in [kept for kept in self._kept if kept[0] >= first]:
                await socket.send_multipart((who, b"", self._topic, number, payload))
            await socket.send_multipart((who, b"", b"", _END, b""))

    def _batch(self, events: Sequence[KvEvent]) -> Batch:
        names = {adapter.revision: adapter.name for adapter in self._worker.adapters.adapters}
        found = [told for event in events for told in self._told(event, names)]
        return Batch(time.time(), found, self._rank)

    def _told(
        self, event: KvEvent, names: Mapping[str, str]
    ) -> Iterator[BlockStored | BlockRemoved | AllBlocksCleared]:
        if isinstance(event, CacheCleared):
            yield AllBlocksCleared()
        elif isinstance(event, BlocksRemoved):
            yield BlockRemoved(event.keys, _MEDIUMS[event.tier])
        else:
            yield self._stored(event, names)

    def _stored(self, event: BlocksStored, names: Mapping[str, str]) -> BlockStored:
        contents = event.contents
        adapter = contents[0].adapter if contents else ""
        name = names.get(adapter, adapter) or None
        keys = [_extra_keys(content, name, not event.parent and not place) for place, content in enumerate(contents)]
        return BlockStored(
            event.keys, event.parent or None, list(itertools.chain(*(content.token_ids for content in contents))),
            self._worker.info.block_size, None, _MEDIUMS[event.tier], name, keys if any(keys) else None,
        )  # fmt: skip


def _extra_keys(content: BlockContent, adapter: str | None, is_first: bool) -> list[str] | None:
    found = [adapter] if adapter else []
    return found + ([content.cache_salt] if is_first and content.cache_salt else []) or None


def endpoint_of(endpoint: str, data_parallel_rank: int) -> str:
    """Returns a rank's own endpoint: of rank 0, the one that is given.

    Raises:
        ValueError: its port is not a number.
    """
    if not data_parallel_rank:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{data_parallel_rank}"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + data_parallel_rank}" if int(port) else endpoint
