"""Memory that the processes of a worker share: a long message is written there once, and each rank reads it there.

Only that it is there goes by each rank's socket, which also has them see what was written before. The memory is a file
without a name, which ranks inherit: it is gone with the last process that has it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

# A page is memory only once it is written to: a slot costs what the longest message took that was in it.
SLOT_BYTES = 8 * 2**20
_NUMBER = struct.Struct("<Q")  # of the message that a slot holds, from 1
_STRIDE = SLOT_BYTES + mmap.PAGESIZE


class SlotsPlace(msgspec.Struct, frozen=True):
    """Where a reader finds them: a descriptor that it inherits."""

    descriptor: int
    count: int


class SlotWriter:
    """The writing end, of one process.

    Attributes:
        place: of the readers.
    """

    def __init__(self, count: int) -> None:
        """
        Args:
            count: messages that may be written before all readers are done with the first of them, as the caller sees
                to it.
        """
        self.place = SlotsPlace(os.memfd_create("quire-slots"), count)
        os.ftruncate(self.place.descriptor, count * _STRIDE)
        self._memory = mmap.mmap(self.place.descriptor, count * _STRIDE)
        self._number = 0

    def write(self, payload: bytes) -> int:
        """Writes a message of SLOT_BYTES at most; returns its number."""
        self._number += 1
        start = self._number % self.place.count * _STRIDE
        _NUMBER.pack_into(self._memory, start, self._number)
        self._memory[start + _NUMBER.size : start + _NUMBER.size + len(payload)] = payload
        return self._number

    def close(self) -> None:
        """Lets go of the memory; readers keep it for as long as they live."""
        self._memory.close()
        os.close(self.place.descriptor)


class SlotReader:
    """A reading end, in another process."""

    def __init__(self, place: SlotsPlace) -> None:
        self._count = place.count
        self._memory = mmap.mmap(place.descriptor, place.count * _STRIDE, prot=mmap.PROT_READ)

    def read(self, number: int, length: int, take: Callable[[memoryview], T]) -> T:
        """A message that has been written.

        Args:
            take: makes something of it that has no part of the memory that it is given.

        Raises:
            RuntimeError: it has been written over, before or meanwhile.
        """
        start = number % self._count * _STRIDE
        with memoryview(self._memory)[start + _NUMBER.size : start + _NUMBER.size + length] as message:
            found = take(message)
        (present,) = _NUMBER.unpack_from(self._memory, start)
        if present != number:
            raise RuntimeError(f"message {number} has been written over by {present}")
        return found
