"""Calls of kernels, noted while they are made, to be made again all at once: as `recordable.h` wants them."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


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
        self.words = array("q")
        self._kept: list[Any] = []  # structures that calls were given
        self.count = 0

    def add(self, caller: int, types: Sequence[type], arguments: Sequence[Any]) -> None:
        """
        Args:
            caller: address of the kernel's quire_call_….
            types: of the kernel's arguments.
        """
        self.words.append(caller)
        self.words.extend(map(self._word, types, arguments))
        self.count += 1

    def replay(self) -> None:
        """Makes the calls in their order.

        Raises:
            KernelFailed: one of them fails; those behind it are not made.
        """
        if left := self._replay(self.words.buffer_info()[0], self.count):
            raise KernelFailed(f"call {self.count - left + 1} of {self.count}: a rank has not come to it in time")

    def _word(self, kind: type, argument: Any) -> int:
        if kind is ctypes.c_float:
            return int.from_bytes(struct.pack("<f", argument), "little")
        if argument is None or isinstance(argument, int):
            return int(argument or 0)
        self._kept.append(structure := argument._obj)  # of ctypes.byref
        return ctypes.addressof(structure)


class SizedCalls:
    """The calls of a step of any size: what differs between those of some sizes is a multiple of one of them."""

    def __init__(self, noted: Sequence[Calls], sizes: Sequence[Sequence[int]]) -> None:
        """
        Args:
            noted: of the same step in several sizes. Each points at the same memory.
            sizes: of each: some numbers, such as its rows.

        Raises:
            NotRecordable: something else differs.
        """
        self._last = noted[-1]
        if len({len(each.words) for each in noted}) > 1:
            raise NotRecordable("a step whose calls are others with other sizes")
        words = np.array([each.words for each in noted])
        differs = (words != words[0]).any(axis=0)
        self._scaled = []  # of each number of a size: which words are how many times as much
        for own in np.array(sizes).T:
            factors = words[0] // own[0]
            places = np.flatnonzero(differs & (words == factors * own[:, None]).all(axis=0))
            self._scaled.append((places, factors[places]))
            differs[places] = False
        if differs.any():
            raise NotRecordable("a step whose calls have other arguments with other sizes")
        self._words = np.frombuffer(self._last.words, dtype=np.int64)

    def replay(self, size: Sequence[int]) -> None:
        """Makes the calls of a step of a size; see Calls.replay."""
        for (places, factors), number in zip(self._scaled, size, strict=True):
            self._words[places] = factors * number
        self._last.replay()
