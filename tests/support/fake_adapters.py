"""The compute side of adapters, without weights: tracks reads, drops and placements, and checks the plan's contract."""

from __future__ import annotations

from collections.abc import Callable

from engine_svc.plan import AdapterChanges


class FakeAdapters:
    """Fake adapters; raises if the control side asks for something impossible.

    Args:
        num_slots, num_places: as --max-loras and --max-cpu-loras.
        steps: number of steps that reading a folder takes.
        error: returns why a folder cannot be read; empty if it can.
    """

    def __init__(
        self,
        num_slots: int,
        num_places: int,
        steps: Callable[[str], int] = lambda folder: 0,
        error: Callable[[str], str] = lambda folder: "",
    ) -> None:
        self._num_slots = num_slots
        self._num_places = num_places
        self._steps = steps
        self._error = error
        self._last_key = 0
        self._reading: dict[int, tuple[str, int]] = {}  # folder, steps left
        self._kept: dict[int, str] = {}
        self._slots: dict[int, str] = {}
        self.num_reads = 0
        self.num_placed = 0

    def begin(self, changes: AdapterChanges) -> None:
        for key in changes.dropped:  # it may not have come so far, where a step failed
            self._reading.pop(key, None)
            self._kept.pop(key, None)
        for placement in changes.placed:
            assert 1 <= placement.slot <= self._num_slots
            self._slots[placement.slot] = self._kept[placement.key]
            self.num_placed += 1
        for key, folder in changes.read.items():
            assert key > self._last_key, "a key is used twice"
            self._last_key = key
            self._reading[key] = folder, self._steps(folder)
            self.num_reads += 1
        assert len(self._reading) + len(self._kept) <= self._num_places, "host memory is full"

    def take_read(self) -> dict[int, str]:
        """The adapters whose reading ends with this step."""
        ended = {}
        for key, (folder, left) in list(self._reading.items()):
            if left:
                self._reading[key] = folder, left - 1
                continue
            del self._reading[key]
            ended[key] = self._error(folder)
            if not ended[key]:
                self._kept[key] = folder
        return ended

    def forget_all(self) -> None:
        """Forgets all adapters, like a new process."""
        for held in (self._reading, self._kept, self._slots):
            held.clear()

    def folder_of(self, slot: int) -> str:
        """The folder of the adapter in a slot; empty for slot 0."""
        return self._slots[slot] if slot else ""
