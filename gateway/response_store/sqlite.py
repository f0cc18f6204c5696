"""Stores responses in an SQLite file, for gateways on one machine."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gateway.response_store.base import (
    LEASE_SECONDS,
    MAX_CHUNKS,
    EventChunk,
    NewResponse,
    ResponseStore,
    Stage,
    StoredResponse,
)
from quire.errors import StartupError, Unavailable
from quire.work_pool import WorkPool

logger = logging.getLogger(__name__)

T = TypeVar("T")
_BUSY_SECONDS = 5.0  # to wait while another process writes
_MAX_WAITING = 4096
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA foreign_keys = ON;
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, body BLOB NOT NULL, items BLOB NOT NULL, created REAL NOT NULL,
    live INTEGER NOT NULL, heartbeat REAL NOT NULL, stops INTEGER NOT NULL DEFAULT 0, has_events INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_created ON responses (created);
CREATE TABLE IF NOT EXISTS events (
    id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, last INTEGER NOT NULL, chunk BLOB NOT NULL,
    PRIMARY KEY (id, last)
) WITHOUT ROWID;
"""


class SqliteStore(ResponseStore):
    """A store with one connection, used by a thread of its own. The file is created readable only by its owner."""

    def __init__(
        self, path: Path, max_count: int, max_age_seconds: float, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        """
        Raises:
            StartupError: the file cannot be opened.
        """
        self._most, self._age, self._lease = max_count, max_age_seconds, lease_seconds
        self._pool = WorkPool("responses to store", 1, _MAX_WAITING)
        try:
            path.touch(mode=0o600)
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StartupError(f"--responses-store: {path} cannot be opened ({error}).") from error

    async def add(self, new: NewResponse) -> None:
        """See ResponseStore."""
        await self._run(lambda: self._add(new))

    async def get(self, identity: str, tenant: str) -> StoredResponse | None:
        """See ResponseStore."""
        return await self._run(lambda: self._get(identity, tenant))

    async def beat(self, identity: str, chunk: EventChunk) -> bool:
        """See ResponseStore."""
        return await self._run(lambda: self._beat(identity, chunk))

    async def finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        """See ResponseStore."""
        await self._run(lambda: self._finish(identity, body, chunk))

    async def events(self, identity: str, after: int) -> Sequence[bytes]:
        """See ResponseStore."""
        query = "SELECT last, chunk FROM events WHERE id = ? AND last > ? ORDER BY last LIMIT ?"
        rows = await self._run(lambda: self._database.execute(query, (identity, after, MAX_CHUNKS)).fetchall())
        return EventChunk.joined((EventChunk.unpacked(last, packed) for last, packed in rows), after)

    async def ask_to_stop(self, identity: str) -> None:
        """See ResponseStore."""
        await self._run(lambda: self._database.execute("UPDATE responses SET stops = 1 WHERE id = ?", (identity,)))

    async def delete(self, identity: str, tenant: str) -> bool:
        """See ResponseStore."""
        query = "DELETE FROM responses WHERE id = ? AND tenant = ? AND created > ?"
        oldest = time.time() - self._age
        return bool(await self._run(lambda: self._database.execute(query, (identity, tenant, oldest)).rowcount))

    async def close(self) -> None:
        """See ResponseStore."""
        await self._pool.run(self._database.close)

    async def _run(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread as one transaction, and returns its result.

        Raises:
            Unavailable: the file cannot be read or written.
        """

        def in_transaction() -> T:
            with self._database:
                return work()

        try:
            return await self._pool.run(in_transaction)
        except sqlite3.Error as error:
            logger.warning("the response store's file cannot be used: %s", error)
            raise Unavailable("The response store is not available; try again in a moment.") from error

    def _add(self, new: NewResponse) -> None:
        now = time.time()
        self._database.execute(
            "INSERT INTO responses (id, tenant, body, items, created, live, heartbeat, has_events) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (new.id, new.tenant, new.body, new.items, now, new.is_live, now, new.has_events),
        )
        self._trim(now)

    def _trim(self, now: float) -> None:
        """Deletes expired responses, and the oldest ended ones beyond the limit.

        Live ones do not count toward the limit, because others could end them that way.
        """
        self._database.execute("DELETE FROM responses WHERE created <= ?", (now - self._age,))
        self._database.execute(
            "DELETE FROM responses WHERE id IN "
            "(SELECT id FROM responses WHERE NOT live ORDER BY created DESC LIMIT -1 OFFSET ?)",
            (self._most,),
        )

    def _get(self, identity: str, tenant: str) -> StoredResponse | None:
        now = time.time()
        row = self._database.execute(
            "SELECT body, items, live, heartbeat, has_events FROM responses "
            "WHERE id = ? AND tenant = ? AND created > ?",
            (identity, tenant, now - self._age),
        ).fetchone()
        if row is None:
            return None
        body, items, live, heartbeat, has_events = row
        held = Stage.LIVE if now - heartbeat < self._lease else Stage.ABANDONED
        return StoredResponse(body, items, held if live else Stage.ENDED, bool(has_events))

    def _beat(self, identity: str, chunk: EventChunk) -> bool:
        query = "UPDATE responses SET heartbeat = ? WHERE id = ? AND live RETURNING stops"
        row = self._database.execute(query, (time.time(), identity)).fetchone()
        if row is not None:
            self._append(identity, chunk)
        return row is not None and not row[0]

    def _finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        query = "UPDATE responses SET live = 0, body = ? WHERE id = ? AND live"
        if self._database.execute(query, (body, identity)).rowcount:
            self._append(identity, chunk)
            self._trim(time.time())

    def _append(self, identity: str, chunk: EventChunk) -> None:
        if chunk.events:
            self._database.execute(
                "INSERT OR REPLACE INTO events VALUES (?, ?, ?)", (identity, chunk.last, chunk.packed())
            )
