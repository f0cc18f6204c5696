"""What a place for responses offers. Several gateways share one."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A response under way whose gateway has said nothing for so long has no gateway any more.
LEASE_SECONDS = 30.0
MAX_CHUNKS = 16  # of events that are read at a time
_END = b"\n\n"  # of an event, and nowhere else in it


class Stage(enum.Enum):
    """How far a response is, as far as a store can tell."""

    LIVE = "live"
    ENDED = "ended"
    ABANDONED = "abandoned"  # it was live when its gateway was lost


@dataclass(frozen=True)
class NewResponse:
    """A response to be kept."""

    id: str
    tenant: str  # a hash of the key; no other one finds it
    body: bytes  # JSON
    items: bytes  # of the conversation before its output, JSON
    is_live: bool = False
    has_events: bool = False


@dataclass(frozen=True)
class StoredResponse:
    """A response that is kept."""

    body: bytes
    items: bytes
    stage: Stage
    has_events: bool


@dataclass(frozen=True)
class EventChunk:
    """Events of a response that follow each other; none is a chunk too.

    Attributes:
        first: number of the first one.
    """

    first: int
    events: Sequence[bytes] = ()

    @property
    def last(self) -> int:
        """Number of the last one."""
        return self.first + len(self.events) - 1

    def packed(self) -> bytes:
        """All events as one."""
        return b"".join(self.events)

    @classmethod
    def unpacked(cls, last: int, packed: bytes) -> EventChunk:
        """The chunk whose last event has this number."""
        events = [event + _END for event in packed.split(_END)[:-1]]
        return cls(last + 1 - len(events), events)

    def after(self, number: int) -> Sequence[bytes]:
        """Those with larger numbers."""
        return self.events[max(0, number + 1 - self.first) :]

    @staticmethod
    def joined(chunks: Iterable[EventChunk], after: int) -> list[bytes]:
        """The events with larger numbers of chunks in order. What was written twice, as its writer did not get to know
        that it was written, counts once."""
        found: list[bytes] = []
        for chunk in chunks:
            found += chunk.after(after + len(found))
        return found


class ResponseStore(ABC):
    """Keeps responses, as many and for as long as the options say.

    Contract, which `tests/conformance/test_response_stores.py` holds every store to:

    * A response is found by its id and its tenant alone, and after its time is up it is not.
    * One that is live is kept so by `beat`; without it, it is abandoned after a lease. Once it has ended, nothing
      changes it but `delete`.
    * Events come back in order and without gaps, however they were cut into chunks.
    * A store that cannot be reached raises Unavailable.
    """

    @abstractmethod
    async def add(self, new: NewResponse) -> None:
        """Keeps a response; the oldest of those that have ended make room for it."""

    @abstractmethod
    async def get(self, identity: str, tenant: str) -> StoredResponse | None:
        """A tenant's response; None where there is none."""

    @abstractmethod
    async def beat(self, identity: str, chunk: EventChunk) -> bool:
        """Renews the lease of a live response, and adds events. False where it is not to go on."""

    @abstractmethod
    async def finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        """Ends a response that is live."""

    @abstractmethod
    async def events(self, identity: str, after: int) -> Sequence[bytes]:
        """The events with numbers larger than this one: some of them, and none only where there are none."""

    @abstractmethod
    async def ask_to_stop(self, identity: str) -> None:
        """Whoever works on a live response gets to know with its next beat."""

    @abstractmethod
    async def delete(self, identity: str, tenant: str) -> bool:
        """Forgets a tenant's response. False where there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Lets go of connections."""
