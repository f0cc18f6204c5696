"""A queue of requests waiting for a worker with room: bounded, fair between tenants, ordered by priority.

Tenants take turns by the number of tokens already let in for each, divided by its weight (start-time fair queueing,
Goyal, Vin and Cheng 1996): the tenant with the fewest goes next. Urgent requests go before others, whatever their
tenant; a request whose worker was lost goes before all.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# Requests that may be served before one that came earlier.
_MOST_PASSED_OVER = 16


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """A waiting item."""

    item: T
    tenant: str
    priority: int
    tokens: int
    weight: float = 1.0  # of its tenant
    gone: bool = False
    passed_over: int = 0  # requests behind it that were served before it

    @property
    def share(self) -> float:
        """Its tokens, as they count against its tenant."""
        return self.tokens / self.weight


@dataclass(slots=True)
class _Tenant(Generic[T]):
    """The waiting requests of one tenant, the most urgent and then the oldest first."""

    served: float  # shares let in, starting from the others' level when it began to wait
    arrived: int  # breaks ties between tenants: the first one goes first
    turn: int = 0  # number of its valid turn in the queue's heap; 0 while it has none
    heap: list[tuple[int, int, Entry[T]]] = field(default_factory=list)
    share: float = 0.0  # sum of those of its entries
    waiting: int = 0


class FairQueue(Generic[T]):
    """A bounded fair queue. Used from one event loop, except for `waiting_by_tenant`, which any thread may call; never
    blocks."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        """
        Args:
            max_tokens: bound on the tokens of all waiting prompts together. A single request may be longer.
        """
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._tenants: dict[str, _Tenant[T]] = {}
        self._front: deque[Entry[T]] = deque()
        self._order = itertools.count(1)
        # Heap of (priority, shares let in, arrival, turn number, tenant), the next turn first. A change of a tenant's
        # turn pushes a new one; turns that have become void are dropped when they reach the top.
        self._turns: list[tuple[int, float, int, int, _Tenant[T]]] = []
        self._served = 0.0  # shares let in for the tenant served last, before that
        self._waiting = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._waiting

    def waiting_by_tenant(self) -> dict[str, int]:
        """Returns the number of waiting requests of each tenant, those pushed to the front included."""
        waiting = Counter({name: tenant.waiting for name, tenant in list(self._tenants.items())})
        waiting.update(entry.tenant for entry in list(self._front))
        return dict(waiting)

    def push(self, item: T, tenant: str, priority: int, tokens: int, weight: float = 1.0) -> tuple[Entry[T], list[T]]:
        """Queues an item.

        Args:
            weight: the tenant's share of the tokens let in, relative to other tenants.

        Returns:
            Its entry, and the items evicted for it: none, itself, or the newest of the tenants that take most of a
            full queue, for their weight.
        """
        entry = Entry(item, tenant, priority, tokens, weight)
        victims = self._victims(entry)
        if victims is None:
            return entry, [item]
        for each in victims:
            self.remove(each)
        mine = self._tenants.get(tenant)
        if mine is None:
            mine = self._tenants[tenant] = _Tenant(self._served, next(self._order))
        heapq.heappush(mine.heap, (priority, next(self._order), entry))
        mine.share += entry.share
        mine.waiting += 1
        if mine.heap[0][2] is entry:
            self._add_turn(mine)
        self._waiting += 1
        self.tokens += tokens
        return entry, [each.item for each in victims]

    def _victims(self, newcomer: Entry[T]) -> list[Entry[T]] | None:
        """The entries that a newcomer evicts: the newest of tenants that hold more than its own would. None means that
        evicting those would not make enough room."""
        requests = self._waiting + 1 - self._max_requests
        tokens = self.tokens + newcomer.tokens - self._max_tokens if self._waiting else 0
        if requests <= 0 and tokens <= 0:
            return []
        mine = self._tenants.get(newcomer.tenant)
        share = newcomer.share + (mine.share if mine else 0)
        greediest = [(-each.share, each.arrived, each) for each in self._tenants.values() if each.share > share]
        heapq.heapify(greediest)
        held: dict[str, list[Entry[T]]] = {}  # remaining entries of tenants that lose some, the newest last
        victims = []
        while requests > 0 or tokens > 0:
            if not greediest:
                return None
            negated, arrived, tenant = heapq.heappop(greediest)
            name = tenant.heap[0][2].tenant
            if name not in held:
                held[name] = [entry for _, _, entry in sorted(tenant.heap, key=lambda each: each[:2]) if not entry.gone]
            victims.append(held[name].pop())
            requests -= 1
            tokens -= victims[-1].tokens
            if -negated - victims[-1].share > share:
                heapq.heappush(greediest, (negated + victims[-1].share, arrived, tenant))
        return victims

    def push_front(self, item: T, tenant: str) -> Entry[T]:
        """Queues an item before all others, regardless of the bounds: it was let in before."""
        entry = Entry(item, tenant, 0, 0)
        self._front.append(entry)
        self._waiting += 1
        return entry

    def remove(self, entry: Entry[T]) -> None:
        """Takes an entry out of the queue, if it is still there."""
        if entry.gone:
            return
        entry.gone = True
        self._waiting -= 1
        if entry in self._front:
            self._front.remove(entry)
            return
        self.tokens -= entry.tokens
        tenant = self._tenants[entry.tenant]
        tenant.share -= entry.share
        tenant.waiting -= 1
        if not tenant.waiting:
            del self._tenants[entry.tenant]
            tenant.turn = 0
            return
        turn_changes = not tenant.turn or tenant.heap[0][2] is entry
        if len(tenant.heap) > 2 * tenant.waiting + 16:
            tenant.heap = [held for held in tenant.heap if not held[2].gone]
            heapq.heapify(tenant.heap)
        while tenant.heap[0][2].gone:
            heapq.heappop(tenant.heap)
        if turn_changes:
            self._add_turn(tenant)

    def peek(self, count: int = 1) -> list[Entry[T]]:
        """The entries that may go next, in order: the one whose turn it is, and of the same tenant and priority those
        behind it, up to `count` in all, but none behind one that was passed over often enough.

        Called on every frame of a worker, so it must not scan all tenants.

        Raises:
            IndexError: the queue is empty.
        """
        if self._front:
            return [self._front[0]]
        if not self._tenants:
            raise IndexError("nobody waits")
        while self._turns[0][3] != self._turns[0][4].turn:
            heapq.heappop(self._turns)
        heap = self._turns[0][4].heap
        found = [heap[0][2]]
        frontier = sorted((heap[child][:2], child) for child in (1, 2) if child < len(heap))
        while frontier and len(found) < count and found[-1].passed_over < _MOST_PASSED_OVER:
            (priority, _), place = heapq.heappop(frontier)
            if priority != found[0].priority:
                break
            if not heap[place][2].gone:
                found.append(heap[place][2])
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child][:2], child))
        return found

    def let_in(self, entry: Entry[T]) -> None:
        """Takes an entry out because it is served, and charges its tokens to its tenant, whose next turn comes later
        for it."""
        tenant = self._tenants.get(entry.tenant)
        if tenant is not None and entry.tokens:
            self._served = tenant.served
            tenant.served += entry.share
            tenant.turn = 0  # void: `remove` gives it another one
        self.remove(entry)

    def _add_turn(self, tenant: _Tenant[T]) -> None:
        """Pushes a tenant's turn, ordered by its first request's priority and by the shares it was served."""
        if len(self._turns) > 2 * len(self._tenants) + 16:
            self._turns = [each for each in self._turns if each[3] == each[4].turn]
            heapq.heapify(self._turns)
        tenant.turn = next(self._order)
        heapq.heappush(self._turns, (tenant.heap[0][0], tenant.served, tenant.arrived, tenant.turn, tenant))
