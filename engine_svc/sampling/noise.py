"""Noise that depends on (seed, position, token id) and on nothing else: neither batch nor worker changes a result.

A row's keys are Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011):
the seed is its key, the position its counter. Each token's number is a hash of its id under these keys: `triple32` of
Wellons' hash-prospector (2018), a bijection of 32 bits without measurable bias, with a key added before each half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = 2**32 - 1


def row_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Two words of 32 random bits for each row: int64 [rows, 2].

    Args:
        seeds: uint64 [rows]
        positions: uint64 [rows]
    """
    return np.stack(_philox(seeds, positions), axis=-1).astype(np.int64)


def exponentials(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """A number of each token of each row, above 0, exponentially distributed with mean 1: float64 [rows, tokens].

    Args:
        keys: int64 [rows, 2], of row_keys.
        token_ids: int64 [rows, tokens] or [tokens]
    """
    words = (token_ids + keys[:, :1]) & _WORD
    words = ((words ^ (words >> 17)) * 0xED5AD4BB) & _WORD
    words = ((words ^ (words >> 11)) + keys[:, 1:]) & _WORD
    words = (words * 0xAC4C1B51) & _WORD
    words = ((words ^ (words >> 15)) * 0x31848BAB) & _WORD
    words ^= words >> 14
    return -torch.log1p((words + 0.5) * -(2.0**-32))


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
