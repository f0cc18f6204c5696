"""Noise that depends on (seed, position) and on nothing else: neither batch nor worker changes a request's result.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each row, of 53 random bits.

    Args:
        seeds: uint64 [rows], the key.
        positions: uint64 [rows], the counter.
    """
    first, second = _philox(seeds, positions)
    bits = ((first << _HALF) | second) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _philox(
    key: npt.NDArray[np.uint64], counter: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The first two 32-bit words of the block of each counter, each in a uint64."""
    key0, key1 = key & _LOW, key >> _HALF
    word0, word1 = counter & _LOW, counter >> _HALF
    word2, word3 = np.zeros_like(word0), np.zeros_like(word0)
    for _ in range(_ROUNDS):
        product0, product1 = word0 * _MULTIPLIERS[0], word2 * _MULTIPLIERS[1]
        word0, word1, word2, word3 = (
            (product1 >> _HALF) ^ word1 ^ key0,
            product1 & _LOW,
            (product0 >> _HALF) ^ word3 ^ key1,
            product0 & _LOW,
        )
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return word0, word1
