"""Stores responses in Redis, for gateways on any number of machines.

A response is a hash. Its lease, which expires by itself, and its chunks of events, sorted by their last numbers, have
keys of their own. All of them expire with the response.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import RedisError, WatchError

from gateway.response_store.base import (
    LEASE_SECONDS,
    MAX_CHUNKS,
    EventChunk,
    NewResponse,
    ResponseStore,
    Stage,
    StoredResponse,
)
from quire.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CALL_SECONDS = 5.0
_MAX_CONNECTIONS = 64
_PREFIX = "quire:response:"
_INDEX = "quire:responses"  # ids of ended responses, by end time


class RedisStore(ResponseStore):
    """A store with a pool of connections, opened on demand."""

    def __init__(self, url: str, max_count: int, max_age_seconds: float, lease_seconds: float = LEASE_SECONDS) -> None:
        """
        Args:
            url: in the format of the package redis.
        """
        self._most, self._age, self._lease = max_count, max_age_seconds, lease_seconds
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=_MAX_CONNECTIONS, timeout=_CALL_SECONDS, socket_timeout=_CALL_SECONDS,
            socket_connect_timeout=_CALL_SECONDS,
        )  # fmt: skip
        self._redis: Any = redis.asyncio.Redis(connection_pool=pool)

    async def add(self, new: NewResponse) -> None:
        """See ResponseStore."""
        key, age = _PREFIX + new.id, int(self._age * 1000)
        fields = {
            "tenant": new.tenant, "body": new.body, "items": new.items, "live": int(new.is_live),
            "has_events": int(new.has_events),
        }  # fmt: skip
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping=fields)
            pipe.pexpire(key, age)
            pipe.set(f"{key}:lease", 1, px=int(self._lease * 1000))
            await self._done(pipe.execute())
        if not new.is_live:
            await self._count(new.id)

    async def _count(self, identity: str) -> None:
        """Adds an ended response to the index, and deletes the oldest ones beyond the limit."""
        now = time.time()
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zadd(_INDEX, {identity: now})
            pipe.zremrangebyscore(_INDEX, "-inf", now - self._age)
            pipe.zcard(_INDEX)
            *_, count = await self._done(pipe.execute())
        if count > self._most:
            for oldest, _ in await self._done(self._redis.zpopmin(_INDEX, count - self._most)):
                await self._forget(oldest.decode())

    async def get(self, identity: str, tenant: str) -> StoredResponse | None:
        """See ResponseStore."""
        key = _PREFIX + identity
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(key)
            pipe.exists(f"{key}:lease")
            found, is_held = await self._done(pipe.execute())
        if found.get(b"tenant") != tenant.encode():
            return None
        held = Stage.LIVE if is_held else Stage.ABANDONED
        stage = held if found[b"live"] == b"1" else Stage.ENDED
        return StoredResponse(found[b"body"], found[b"items"], stage, found[b"has_events"] == b"1")

    async def beat(self, identity: str, chunk: EventChunk) -> bool:
        """See ResponseStore."""
        key = _PREFIX + identity
        live, stops = await self._done(self._redis.hmget(key, "live", "stops"))
        if live != b"1":
            return False
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(f"{key}:lease", 1, px=int(self._lease * 1000))
            self._append(pipe, key, chunk)
            await self._done(pipe.execute())
        return stops is None

    async def finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        """See ResponseStore."""

        def end(pipe: Any, key: str) -> None:
            pipe.hset(key, mapping={"live": 0, "body": body})
            self._append(pipe, key, chunk)

        if await self._change_live(identity, end):
            await self._count(identity)

    async def events(self, identity: str, after: int) -> Sequence[bytes]:
        """See ResponseStore."""
        key = f"{_PREFIX}{identity}:events"
        rows = await self._done(
            self._redis.zrange(key, f"({after}", "+inf", byscore=True, withscores=True, offset=0, num=MAX_CHUNKS)
        )
        return EventChunk.joined((EventChunk.unpacked(int(last), packed) for packed, last in rows), after)

    async def ask_to_stop(self, identity: str) -> None:
        """See ResponseStore."""
        await self._change_live(identity, lambda pipe, key: pipe.hset(key, "stops", 1))

    async def _change_live(self, identity: str, change: Callable[[Any, str], object]) -> bool:
        """Changes a response that is live. One that is deleted meanwhile is not written to, which would recreate it.

        Args:
            change: adds commands to a transaction, for the response's key.

        Returns:
            Whether it was live.
        """
        key = _PREFIX + identity
        while True:
            async with self._redis.pipeline(transaction=True) as pipe:
                await self._done(pipe.watch(key))
                if await self._done(pipe.hget(key, "live")) != b"1":
                    return False
                pipe.multi()
                change(pipe, key)
                with contextlib.suppress(WatchError):  # ended, deleted or asked to stop concurrently
                    await self._done(pipe.execute())
                    return True

    async def delete(self, identity: str, tenant: str) -> bool:
        """See ResponseStore."""
        if await self.get(identity, tenant) is None:
            return False
        await self._done(self._redis.zrem(_INDEX, identity))
        return await self._forget(identity)

    async def close(self) -> None:
        """See ResponseStore."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _forget(self, identity: str) -> bool:
        key = _PREFIX + identity
        return bool(await self._done(self._redis.delete(key, f"{key}:lease", f"{key}:events")))

    def _append(self, pipe: Any, key: str, chunk: EventChunk) -> None:
        if chunk.events:
            pipe.zadd(f"{key}:events", {chunk.packed(): chunk.last})
            pipe.pexpire(f"{key}:events", int(self._age * 1000))

    async def _done(self, call: Awaitable[T]) -> T:
        """
        Raises:
            Unavailable: Redis cannot be reached, or the command failed.
        """
        try:
            return await call
        except WatchError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("the response store in Redis cannot be used: %s", error)
            raise Unavailable("The response store is not available; try again in a moment.") from error
