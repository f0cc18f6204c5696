"""Tracks which adapters are in host memory and on the device, and which sequences wait for one.

A sequence runs with its adapter's weights in a device slot, which it holds from its start until it ends or is
preempted. A sequence whose adapter has no slot is set aside, so that it does not block the queue, and is queued again
once the adapter has one. Slots, and before them places in host memory, are given to adapters in the order of their
first waiting sequences; only slots and places that no running sequence uses are given away.

No sequence starves: while one is set aside, later sequences may overtake it by starting with adapters that are already
loaded, but only a limited number of them. After that its adapter claims a slot, which no later sequence may take.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from engine_svc.adapters.adapter import Adapter
from engine_svc.plan import AdapterChanges, AdapterPlacement
from engine_svc.requests.outputs import AdapterLoad

# Sequences that may overtake one that is set aside before a slot is reserved for it. In simulations with 64 adapters, 4
# slots, 16 running sequences and 16 waiting ones, having no bound did not start more sequences per step; allowing no
# overtaking started half as many.
MOST_OVERTAKING = 32
_CHANGED = "its files have changed since it was loaded; load it again, in place"


class AdapterUser(Protocol):
    """A sequence, or a pooling request, that may need an adapter.

    Attributes:
        adapter_slot: the slot that it holds; 0 for none. Written by AdapterSlots alone.
    """

    adapter_slot: int

    @property
    def adapter(self) -> Adapter | None:
        """The adapter that it runs with; None for none."""
        ...

    @property
    def order(self) -> tuple[int, int, int]:
        """Lower goes first; no two are equal."""
        ...


User = TypeVar("User", bound=AdapterUser)


def _order(sequence: AdapterUser) -> tuple[int, int, int]:
    return sequence.order


class _Entry(Generic[User]):
    """State of an adapter while a request uses it or it is kept in memory."""

    __slots__ = ("adapter", "aside", "gone", "is_read", "num_overtaking", "num_requests", "num_running", "slot",
                 "used", "wire_key")  # fmt: skip

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.wire_key = 0  # identifies this stay in host memory; 0 while it is not there
        self.is_read = False
        self.slot = 0
        self.num_requests = 0
        self.num_running = 0  # sequences that hold the slot
        self.used = 0  # logical time of the last use; greater is later
        self.aside: list[User] = []  # sequences waiting for the adapter, by `Sequence.order`
        self.num_overtaking = 0  # sequences that started ahead of those set aside
        self.gone: Callable[[], None] | None = (
            None  # set once the adapter is retired; called when its last request ends
        )

    @property
    def order(self) -> tuple[int, int, int]:
        """The order of the first sequence that is set aside for this adapter."""
        return self.aside[0].order

    def is_free_for(self, order: tuple[int, int, int]) -> bool:
        """Whether a sequence with this order may evict the adapter from its slot or place."""
        return not self.num_running and not (self.aside and self.order < order)


class AdapterSlots(Generic[User]):
    """Owns the device slots and host memory places. Single-threaded unless a method says otherwise."""

    def __init__(self, num_slots: int = 0, num_places: int = 0) -> None:
        """
        Args:
            num_slots: adapter slots on the device (--max-loras); 0 when no adapters are served.
            num_places: adapters that host memory holds, including those that are also on the device.
        """
        self._num_places = num_places
        self._entries: dict[int, _Entry[User]] = {}  # by the adapter's key
        self._slots: dict[int, _Entry[User] | None] = dict.fromkeys(range(1, num_slots + 1))
        self._claims: dict[int, _Entry[User]] = {}  # slot → the adapter that it is reserved for
        self._set_aside: dict[User, _Entry[User]] = {}
        self._reading: dict[int, _Entry[User]] = {}  # by wire key
        self._wire_keys = itertools.count(1)
        self._uses = itertools.count(1)
        self._dropped: list[int] = []
        self._placed: dict[int, AdapterPlacement] = {}  # by slot
        self._read: dict[int, str] = {}

    @property
    def is_serving(self) -> bool:
        """Whether there are any slots."""
        return bool(self._slots)

    # Requests.

    def enter(self, adapter: Adapter | None) -> None:
        """Registers a new request that uses the adapter, if any."""
        if adapter is not None:
            self._entry(adapter).num_requests += 1

    def leave(self, adapter: Adapter | None) -> None:
        """Unregisters a request that has ended together with all of its sequences."""
        if adapter is not None:
            entry = self._entries[adapter.key]
            entry.num_requests -= 1
            self._forget_unused(entry)

    def num_requests(self, key: int) -> int:
        """Number of live requests that use the adapter. May be called from any thread."""
        entry = self._entries.get(key)
        return entry.num_requests if entry else 0

    def retire(self, adapter: Adapter, gone: Callable[[], None]) -> None:
        """Drops the adapter from all memory and calls `gone` once its last request ends; no new requests may use it."""
        entry = self._entry(adapter)
        entry.gone = gone
        self._forget_unused(entry)

    # Sequences.

    def admit(self, sequence: User) -> bool:
        """Whether a sequence may start: it needs no adapter or now holds its adapter's slot. Else sets it aside."""
        adapter = sequence.adapter
        if adapter is None or sequence.adapter_slot:
            return True
        entry = self._entries[adapter.key]
        entry.used = next(self._uses)
        is_first = not entry.aside
        insort(entry.aside, sequence, key=_order)
        self._set_aside[sequence] = entry
        if not (entry.slot or is_first) or not self._get_on(entry, sequence.order):
            return False
        self.forget(sequence)
        self._hold(entry, sequence)
        return True

    def release(self, sequence: User) -> None:
        """Returns the adapter slot that a sequence holds, if any."""
        if sequence.adapter_slot:
            entry = self._slots[sequence.adapter_slot]
            assert entry is not None
            entry.num_running -= 1
            sequence.adapter_slot = 0

    def forget(self, sequence: User) -> bool:
        """Removes a sequence from those set aside; returns whether it was one of them."""
        entry = self._set_aside.pop(sequence, None)
        if entry is None:
            return False
        entry.aside.remove(sequence)
        if not entry.aside:
            self._clear_claims(entry)
        return True

    @property
    def set_aside(self) -> Iterable[User]:
        """The sequences that are set aside. May be read from any thread."""
        return list(self._set_aside)

    @property
    def num_set_aside(self) -> int:
        """Number of sequences that are set aside. May be read from any thread."""
        return len(self._set_aside)

    def settle(self) -> list[User]:
        """Advances the adapters that sequences wait for, at the beginning of a step.

        Returns:
            The sequences that no longer wait. The first one for each adapter holds its slot; the others must call
            `admit` again.
        """
        freed: list[User] = []
        if not self._set_aside:
            return freed
        for entry in sorted((each for each in self._entries.values() if each.aside), key=lambda each: each.order):
            if self._get_on(entry, entry.order):
                going = list(entry.aside)
                for sequence in going:
                    self.forget(sequence)
                self._hold(entry, going[0])
                freed += going
        return freed

    # Memory.

    @property
    def is_changing(self) -> bool:
        """Whether the next step must carry adapter changes, or adapters are being read."""
        return bool(self._dropped or self._placed or self._reading)

    def take_changes(self) -> AdapterChanges:
        """Returns the adapter changes that the next step begins with, and clears them."""
        changes = AdapterChanges(self._dropped, list(self._placed.values()), self._read)
        self._dropped, self._placed, self._read = [], {}, {}
        return changes

    def end_reads(self, read: Mapping[int, str]) -> list[tuple[User, str]]:
        """Books the finished reads of adapters into host memory.

        Args:
            read: wire key → error, empty on success.

        Returns:
            The sequences waiting for adapters that could not be read, each with the error.
        """
        failed: list[tuple[User, str]] = []
        for entry in [self._reading[wire_key] for wire_key in read if wire_key in self._reading]:
            error = read[entry.wire_key] or (_CHANGED if entry.adapter.has_changed() else "")
            if error:
                self._drop(entry)
                failed += [(sequence, error) for sequence in entry.aside]
            else:
                entry.is_read = True
                del self._reading[entry.wire_key]
        return failed

    def redo(self, changes: AdapterChanges) -> None:
        """Schedules the changes of a failed step again: it is unknown which of them were applied."""
        self._dropped += changes.dropped
        for entry in list(self._reading.values()):  # reports of earlier reads may have been lost with the step
            self._drop(entry)
        for placement in changes.placed:
            holder = self._slots[placement.slot]
            if holder is not None and holder.wire_key == placement.key:
                self._placed[placement.slot] = placement

    def forget_memory(self) -> None:
        """Drops all adapters from memory, while no sequence holds a slot; each is read again when it is needed."""
        for entry in list(self._entries.values()):
            self._drop(entry)

    def loads(self, running: Iterable[User], waiting: Iterable[User]) -> tuple[AdapterLoad, ...]:
        """Load of each adapter on the device or with sequences, sorted by name. May be called from any thread."""
        runs, waits = _count(running), _count(waiting)
        there = {entry.adapter.name for entry in list(self._slots.values()) if entry and entry.gone is None}
        names = sorted(there | runs.keys() | waits.keys())
        return tuple(AdapterLoad(name, name in there, runs[name], waits[name]) for name in names)

    def check(self, sequences: Iterable[User]) -> None:
        """Verifies that no slot or place is lost.

        Args:
            sequences: all waiting and running sequences.

        Raises:
            RuntimeError: the bookkeeping is inconsistent.
        """
        holders = [each for each in sequences if each.adapter_slot]
        if any(self._slots[each.adapter_slot] is not self._entries[_key(each)] for each in holders):
            raise RuntimeError("a sequence holds the slot of another adapter")
        for slot, entry in self._slots.items():
            if entry is not None and (entry.slot != slot or not entry.is_read):
                raise RuntimeError(f"slot {slot} has an adapter that is not there")
            if (entry.num_running if entry else 0) != sum(each.adapter_slot == slot for each in holders):
                raise RuntimeError(f"slot {slot} has another number of sequences than hold it")
        if self._num_kept() > self._num_places:
            raise RuntimeError(f"{self._num_kept()} adapters are in host memory, {self._num_places} at most")
        if any(not (entry.num_requests or entry.wire_key) for entry in self._entries.values()):
            raise RuntimeError("an adapter is remembered that nobody has")
        if sum(len(entry.aside) for entry in self._entries.values()) != len(self._set_aside):
            raise RuntimeError("sequences that are set aside are lost or counted twice")
        if self._reading != {
            each.wire_key: each for each in self._entries.values() if each.wire_key and not each.is_read
        }:
            raise RuntimeError("adapters are being read that nobody wants, or wanted and not read")

    def _entry(self, adapter: Adapter) -> _Entry[User]:
        return self._entries.setdefault(adapter.key, _Entry(adapter))

    def _forget_unused(self, entry: _Entry[User]) -> None:
        """If no request uses the adapter, drops it if it is retired, and forgets it if it is not in memory."""
        if entry.num_requests:
            return
        if entry.gone is not None:
            self._drop(entry)
            entry.gone()
        if not entry.wire_key:
            self._entries.pop(entry.adapter.key, None)

    def _hold(self, entry: _Entry[User], sequence: User) -> None:
        sequence.adapter_slot = entry.slot
        entry.num_running += 1
        entry.num_overtaking = 0
        for other in self._entries.values():
            if other.aside and other.order < sequence.order:
                other.num_overtaking += 1

    def _get_on(self, entry: _Entry[User], order: tuple[int, int, int]) -> bool:
        """Advances an adapter one step towards a slot; returns whether a sequence with this order may hold it now."""
        if entry.slot:
            return self._may_take(entry.slot, order)
        if entry.is_read:
            if slot := self._free_slot(order):
                self._place(entry, slot)
                return True
        elif entry.wire_key:
            return False  # it is being read
        elif self._make_place(order):
            entry.wire_key = next(self._wire_keys)
            self._reading[entry.wire_key] = entry
            self._read[entry.wire_key] = entry.adapter.folder
            return False
        if entry.num_overtaking >= MOST_OVERTAKING and entry not in self._claims.values():
            self._claim(entry)
        return False

    def _may_take(self, slot: int, order: tuple[int, int, int]) -> bool:
        """Whether the slot is not claimed for a sequence that comes before this order."""
        claimant = self._claims.get(slot)
        return claimant is None or not claimant.aside or order <= claimant.order

    def _free_slot(self, order: tuple[int, int, int]) -> int:
        """An empty slot, or else the one with the least recently used adapter; 0 if none is available."""
        free = [
            (entry.used if entry else 0, slot)
            for slot, entry in self._slots.items()
            if (entry is None or entry.is_free_for(order)) and self._may_take(slot, order)
        ]
        return min(free)[1] if free else 0

    def _place(self, entry: _Entry[User], slot: int) -> None:
        last = self._slots[slot]
        if last is not None:
            last.slot = 0
        self._slots[slot], entry.slot = entry, slot
        self._placed[slot] = AdapterPlacement(slot, entry.wire_key)
        self._clear_claims(entry)

    def _claim(self, entry: _Entry[User]) -> None:
        """Reserves for an adapter the unclaimed slot whose current adapter was least recently used."""
        slots = [(last.used if last else 0, slot) for slot, last in self._slots.items() if slot not in self._claims]
        if slots:
            self._claims[min(slots)[1]] = entry

    def _clear_claims(self, entry: _Entry[User]) -> None:
        entry.num_overtaking = 0
        self._claims = {slot: claimant for slot, claimant in self._claims.items() if claimant is not entry}

    def _num_kept(self) -> int:
        return sum(1 for entry in self._entries.values() if entry.wire_key)

    def _make_place(self, order: tuple[int, int, int]) -> bool:
        """Makes room for an adapter in host memory, dropping the least recently used one; returns whether it could."""
        if self._num_kept() < self._num_places:
            return True
        kept = [entry for entry in self._entries.values() if entry.is_read and entry.is_free_for(order)]
        kept = [entry for entry in kept if not entry.slot or self._may_take(entry.slot, order)]
        if not kept:
            return False
        last = min(kept, key=lambda entry: entry.used)
        self._drop(last)
        return True

    def _drop(self, entry: _Entry[User]) -> None:
        """Removes an adapter from host memory and from the device."""
        if entry.slot:
            self._slots[entry.slot], entry.slot = None, 0
        if entry.wire_key:
            self._dropped.append(entry.wire_key)
            self._reading.pop(entry.wire_key, None)
            self._placed = {slot: each for slot, each in self._placed.items() if each.key != entry.wire_key}
        entry.wire_key, entry.is_read = 0, False
        if not entry.num_requests:
            self._entries.pop(entry.adapter.key, None)


def _count(sequences: Iterable[AdapterUser]) -> Counter[str]:
    """Number of sequences by adapter name."""
    adapters = (sequence.adapter for sequence in sequences)
    return Counter(adapter.name for adapter in adapters if adapter is not None)


def _key(sequence: AdapterUser) -> int:
    adapter = sequence.adapter
    return adapter.key if adapter is not None else 0
