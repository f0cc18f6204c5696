"""A group of workers whose caches are looked up together, with results as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.float64]  # an entry per worker; whole numbers, as floats because combined with seconds


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """A group of distinct workers. Valid until one of them leaves the index or starts over."""

    mask: int  # union of their bits
    places: NDArray[np.intp]  # bit positions of the workers, in their order

    @classmethod
    def of(cls, bits: Iterable[int]) -> Members:
        """
        Args:
            bits: the bit of each worker.
        """
        bits = list(bits)
        mask = 0
        for bit in bits:
            mask |= bit
        return cls(mask, np.array([bit.bit_length() - 1 for bit in bits], np.intp))

    def spread(self, found: Sequence[tuple[int, int]]) -> Blocks:
        """Spreads the result of `match` over the workers: returns the number of leading blocks that each holds.

        Args:
            found: (blocks, mask of the workers that hold that many); no worker is in two masks.
        """
        if not found:
            return np.zeros(len(self.places))
        num_bytes = (self.mask.bit_length() + 7) // 8
        blocks = np.zeros(num_bytes * 8)
        for count, mask in found:
            if mask & (mask - 1):
                held = np.unpackbits(np.frombuffer(mask.to_bytes(num_bytes, "little"), np.uint8), bitorder="little")
                blocks[held.view(np.bool_)] = count
            else:
                blocks[mask.bit_length() - 1] = count
        return blocks[self.places]
