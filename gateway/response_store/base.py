"""Interface of stores for responses. Several gateways share one."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A live response whose gateway has not renewed its lease for this long has lost its gateway.
LEASE_SECONDS = 30.0
MAX_CHUNKS = 16  # chunks of events read at a time
_END = b"\n\n"  # ends an event, and occurs nowhere else in it


class Stage(enum.Enum):
    """State of a response, as far as a store knows."""

    LIVE = "live"
    ENDED = "ended"
    ABANDONED = "abandoned"  # its gateway was lost while it was live


@dataclass(frozen=True)
class NewResponse:
    """A response to store."""

    id: str
    tenant: str  # hash of the key; only the same tenant can find it
    body: bytes  # JSON
    items: bytes  # the conversation before its output, JSON
    is_live: bool = False
    has_events: bool = False


@dataclass(frozen=True)
class StoredResponse:
    """A stored response."""

    body: bytes
    items: bytes
    stage: Stage
    has_events: bool


@dataclass(frozen=True)
class EventChunk:
    """Consecutive events of a response; may be empty.

    Attributes:
        first: number of the first event.
    """

    first: int
    events: Sequence[bytes] = ()

    @property
    def last(self) -> int:
        """Number of the last event."""
        return self.first + len(self.events) - 1

    def packed(self) -> bytes:
        """Returns all events concatenated."""
        return b"".join(self.events)

    @classmethod
    def unpacked(cls, last: int, packed: bytes) -> EventChunk:
        """Splits packed events, given the number of the last one."""
        events = [event + _END for event in packed.split(_END)[:-1]]
        return cls(last + 1 - len(events), events)

    def after(self, number: int) -> Sequence[bytes]:
        """Returns the events with numbers above this one."""
        return self.events[max(0, number + 1 - self.first) :]

    @staticmethod
    def joined(chunks: Iterable[EventChunk], after: int) -> list[bytes]:
        """Returns the events with larger numbers from chunks in order.

        Events written twice, because the writer did not learn that the first write succeeded, are returned once.
        """
        found: list[bytes] = []
        for chunk in chunks:
            found += chunk.after(after + len(found))
        return found


class ResponseStore(ABC):
    """Stores responses, up to the number and age that the options set.

    Contract, checked for every store by `tests/conformance/test_response_stores.py`:

    * A response can be found only by its id and tenant, and only until it expires.
    * `beat` keeps a live response alive; without it, the response is abandoned after the lease. Once a response has
      ended, only `delete` changes it.
    * Events are returned in order and without gaps, however they were cut into chunks.
    * A store that cannot be reached raises Unavailable.
    """

    @abstractmethod
    async def add(self, new: NewResponse) -> None:
        """Stores a response; the oldest ended ones are evicted to make room."""

    @abstractmethod
    async def get(self, identity: str, tenant: str) -> StoredResponse | None:
        """Returns a tenant's response; None if there is none."""

    @abstractmethod
    async def beat(self, identity: str, chunk: EventChunk) -> bool:
        """Renews the lease of a live response, and adds events. Returns False if the response should stop."""

    @abstractmethod
    async def finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        """Ends a live response."""

    @abstractmethod
    async def events(self, identity: str, after: int) -> Sequence[bytes]:
        """Returns events with numbers above this one: perhaps not all, but at least one if there are any."""

    @abstractmethod
    async def ask_to_stop(self, identity: str) -> None:
        """Asks the gateway of a live response to stop it; its next `beat` returns False."""

    @abstractmethod
    async def delete(self, identity: str, tenant: str) -> bool:
        """Deletes a tenant's response. Returns False if there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Closes connections."""
