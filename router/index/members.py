"""Workers whose caches are looked up together, and what was found of each as an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.float64]  # of each worker, in their order; whole numbers, reckoned with beside seconds


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Some workers, each once. Valid until one of them begins anew."""

    mask: int  # the sum of their bits
    places: NDArray[np.intp]  # that their bits have in it, in the order of the workers

    @classmethod
    def of(cls, bits: Iterable[int]) -> Members:
        """
        Args:
            bits: of the workers.
        """
        bits = list(bits)
        mask = 0
        for bit in bits:
            mask |= bit
        return cls(mask, np.array([bit.bit_length() - 1 for bit in bits], np.intp))

    def spread(self, found: Sequence[tuple[int, int]]) -> Blocks:
        """What `match` found, worker by worker: how many leading blocks each holds.

        Args:
            found: (blocks, mask of the workers that hold so many); no worker is in two masks.
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
