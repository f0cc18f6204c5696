"""Records kernel calls instead of making them, to replay them all at once; the format is that of `recordable.h`."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_WORD = 8  # bytes


class NotRecordable(Exception):
    """Something was done that replaying kernel calls cannot repeat; the message says what."""


class KernelFailed(Exception):
    """A kernel has failed. Only kernels that wait for other ranks can fail."""


class Calls:
    """Recorded calls of one level's kernels. Everything they point at must live as long as this object."""

    def __init__(self) -> None:
        self.words = array("q")
        self.structures: dict[int, ctypes.Structure] = {}  # by the index of the word with their address
        self.count = 0

    def add(self, caller: int, types: Sequence[type], arguments: Sequence[Any]) -> None:
        """
        Args:
            caller: address of the kernel's quire_call_….
            types: of the kernel's arguments.
        """
        self.words.append(caller)
        for kind, argument in zip(types, arguments, strict=True):
            self.words.append(self._word(kind, argument))
        self.count += 1

    def _word(self, kind: type, argument: Any) -> int:
        if kind is ctypes.c_float:
            return int.from_bytes(struct.pack("<f", argument), "little")
        if argument is None or isinstance(argument, int):
            return int(argument or 0)
        structure = self.structures[len(self.words)] = argument._obj  # of ctypes.byref
        return ctypes.addressof(structure)

    @property
    def form(self) -> tuple[Any, ...]:
        """The number of words, and the index and size of each structure that a word points at."""
        sizes = ((place, ctypes.sizeof(structure)) for place, structure in self.structures.items())
        return len(self.words), *sizes

    def with_structures(self, places: Sequence[int]) -> npt.NDArray[np.int64]:
        """The words with 0 at these indices, followed by the contents of the structures whose addresses were there."""
        words = np.array(self.words, dtype=np.int64)
        words[places] = 0
        return np.concatenate([words, *(np.frombuffer(bytes(self.structures[place]), np.int64) for place in places)])


class SizedCalls:
    """The calls of a step of any size, extrapolated from a few sizes: words that differ are multiples of a size."""

    def __init__(
        self, replay: Callable[[int, int], int], noted: Sequence[Calls], sizes: Sequence[Sequence[int]]
    ) -> None:
        """
        Args:
            replay: makes a number of calls stored at an address; returns how many of them were not made.
            noted: recorded calls of the same step in several sizes. All point at the same memory, except for their own
                structures.
            sizes: the size of each step: a few numbers, such as its rows.

            Raises:
                NotRecordable: the calls differ in other ways.
        """
        self._replay, self._last = replay, noted[-1]
        self.count = self._last.count
        if len({each.form for each in noted}) > 1:
            raise NotRecordable("a step whose calls differ between sizes")
        # A structure with the same address in all sizes belongs to the caller, who may change it between replays.
        own = [place for place in self._last.structures if noted[0].words[place] != self._last.words[place]]
        words = np.array([each.with_structures(own) for each in noted])
        self._scaled = _find_scaled(words, sizes)
        self._words = words[-1].copy()
        end = len(self._last.words)
        for place in own:
            self._words[place] = self._words.ctypes.data + _WORD * end
            end += ctypes.sizeof(self._last.structures[place]) // _WORD

    def replay(self, size: Sequence[int]) -> None:
        """Makes the calls of a step of this size, in order.

        Raises:
            KernelFailed: a call fails; those after it are not made.
        """
        for (places, factors), number in zip(self._scaled, size, strict=True):
            self._words[places] = factors * number
        if left := self._replay(self._words.ctypes.data, self.count):
            raise KernelFailed(f"call {self.count - left + 1} of {self.count}: a rank did not reach it in time")


def _find_scaled(
    words: npt.NDArray[np.int64], sizes: Sequence[Sequence[int]]
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each number of a size: the indices of the words that are multiples of it, and their factors.

    Args:
        words: [sizes, words]

    Raises:
        NotRecordable: other words differ between sizes.
    """
    differs = (words != words[0]).any(axis=0)
    scaled = []
    for own in np.array(sizes).T:
        factors = words[0] // own[0]
        places = np.flatnonzero(differs & (words == factors * own[:, None]).all(axis=0))
        scaled.append((places, factors[places]))
        differs[places] = False
    if differs.any():
        raise NotRecordable("a step whose calls have different arguments for different sizes")
    return scaled
