"""Shared memory of a worker's processes: a long message is written there once, and every rank reads it there.

Each rank's socket only carries a notification, which also orders the memory accesses: a rank that has received it sees
what was written before. The memory is an anonymous file that ranks inherit; it is gone with the last process that has
it open.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

# Pages are allocated only when written: a slot costs as much memory as the longest message it has held.
SLOT_BYTES = 8 * 2**20
_NUMBER = struct.Struct("<Q")  # number of the message that a slot holds, from 1
_STRIDE = SLOT_BYTES + mmap.PAGESIZE


class SlotsPlace(msgspec.Struct, frozen=True):
    """What a reader needs to open the slots: an inherited file descriptor, and the number of slots."""

    descriptor: int
    count: int


class SlotWriter:
    """The writing end, used by one process.

    Attributes:
        place: passed to the readers.
    """

    def __init__(self, count: int) -> None:
        """
        Args:
            count: number of messages that may be written before all readers are done with the first of them. The
                caller ensures that.
        """
        self.place = SlotsPlace(os.memfd_create("quire-slots"), count)
        os.ftruncate(self.place.descriptor, count * _STRIDE)
        self._memory = mmap.mmap(self.place.descriptor, count * _STRIDE)
        self._number = 0

    def write(self, payload: bytes) -> int:
        """Writes a message of at most SLOT_BYTES; returns its number."""
        self._number += 1
        start = self._number % self.place.count * _STRIDE
        _NUMBER.pack_into(self._memory, start, self._number)
        self._memory[start + _NUMBER.size : start + _NUMBER.size + len(payload)] = payload
        return self._number

    def close(self) -> None:
        """Releases the memory; readers keep it for as long as they live."""
        self._memory.close()
        os.close(self.place.descriptor)


class SlotReader:
    """A reading end, in another process."""

    def __init__(self, place: SlotsPlace) -> None:
        self._count = place.count
        self._memory = mmap.mmap(place.descriptor, place.count * _STRIDE, prot=mmap.PROT_READ)

    def read(self, number: int, length: int, take: Callable[[memoryview], T]) -> T:
        """Reads a message that has been written.

        Args:
            take: converts the message; the result must not refer to the memory it is given.

        Raises:
            RuntimeError: the message was overwritten, before or during the read.
        """
        start = number % self._count * _STRIDE
        with memoryview(self._memory)[start + _NUMBER.size : start + _NUMBER.size + length] as message:
            found = take(message)
        (present,) = _NUMBER.unpack_from(self._memory, start)
        if present != number:
            raise RuntimeError(f"message {number} has been written over by {present}")
        return found
