"""Calls of kernels, noted while they are made, to be made again all at once: as `recordable.h` wants them."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any


class NotRecordable(Exception):
    """Something was done that cannot be done again by calls of kernels; the text says what."""


class KernelFailed(Exception):
    """A kernel could not do what it was called for: only those fail that wait for others."""


class Calls:
    """Of one level's kernels. Whatever they point at must stay as long as this."""

    def __init__(self, replay: Callable[[int, int], int]) -> None:
        """
        Args:
            replay: calls again what lies at an address, so many calls; returns how many of them were not made.
        """
        self._replay = replay
        self._words = array("q")
        self._kept: list[Any] = []  # structures that calls were given
        self.count = 0

    def add(self, caller: int, types: Sequence[type], arguments: Sequence[Any]) -> None:
        """
        Args:
            caller: address of the kernel's quire_call_….
            types: of the kernel's arguments.
        """
        self._words.append(caller)
        self._words.extend(map(self._word, types, arguments))
        self.count += 1

    def replay(self) -> None:
        """Makes the calls in their order.

        Raises:
            KernelFailed: one of them fails; those behind it are not made.
        """
        if left := self._replay(self._words.buffer_info()[0], self.count):
            raise KernelFailed(f"call {self.count - left + 1} of {self.count}: a rank has not come to it in time")

    def _word(self, kind: type, argument: Any) -> int:
        if kind is ctypes.c_float:
            return int.from_bytes(struct.pack("<f", argument), "little")
        if argument is None or isinstance(argument, int):
            return int(argument or 0)
        self._kept.append(structure := argument._obj)  # of ctypes.byref
        return ctypes.addressof(structure)
