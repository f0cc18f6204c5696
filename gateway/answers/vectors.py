"""Encodes and compares the vectors that pooling models output."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.answers.pooled import Pooled

Rows = NDArray[np.float32]

_MOST_PRODUCTS = 2**20
_EXPONENT_BITS = {"fp8_e4m3": 4, "fp8_e5m2": 5}
_NATIVE = {"little": "<", "big": ">", "native": "<" if sys.byteorder == "little" else ">"}


def rows_of(output: Pooled) -> Rows:
    """Returns the output as an array: [values], or [tokens, values]."""
    return np.frombuffer(output.data, "<f4").reshape(output.shape)


def lists_of(output: Pooled) -> list[float] | list[list[float]]:
    """Returns the output as lists."""
    found: list[float] | list[list[float]] = rows_of(output).tolist()
    return found


def encoded(output: Pooled, dtype: str, endianness: str) -> bytes:
    """Encodes the values, row by row.

    Args:
        dtype: float32, float16, bfloat16, fp8_e4m3 or fp8_e5m2.
        endianness: little, big or native.
    """
    order = _NATIVE[endianness]
    if dtype == "float32":
        return output.data if order == "<" else rows_of(output).astype(">f4").tobytes()
    rows = rows_of(output)
    if dtype == "float16":
        return rows.astype(f"{order}f2").tobytes()
    if dtype == "bfloat16":
        return _bfloat16(rows).astype(f"{order}u2").tobytes()
    return _fp8(rows, _EXPONENT_BITS[dtype]).tobytes()


def in_base64(output: Pooled, dtype: str = "float32", endianness: str = "little") -> str:
    """Encodes the values as base64; arguments as `encoded`."""
    return base64.b64encode(encoded(output, dtype, endianness)).decode()


def _bfloat16(rows: Rows) -> NDArray[Any]:
    """Returns the upper halves, rounded to nearest even. Values must be finite."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _fp8(rows: Rows, exponent_bits: int) -> NDArray[Any]:
    """Rounds to the nearest of the 127 or 124 magnitudes, ties to even; larger values saturate."""
    magnitudes = _fp8_magnitudes(exponent_bits)
    values = np.abs(rows.astype(np.float64)).reshape(-1)
    above = np.clip(np.searchsorted(magnitudes, values), 1, len(magnitudes) - 1)
    low, high = values - magnitudes[above - 1], magnitudes[above] - values
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    found: NDArray[Any] = (code | (np.signbit(rows.reshape(-1)) * 0x80)).astype(np.uint8)
    return found


def _fp8_magnitudes(exponent_bits: int) -> NDArray[Any]:
    """Returns the magnitudes by code, ascending. E4M3 has no infinities and one NaN code; E5M2 has IEEE's codes."""
    mantissa_bits, bias = 7 - exponent_bits, 2 ** (exponent_bits - 1) - 1
    codes = np.arange(0x7F if exponent_bits == 4 else 0x7C)
    exponent, mantissa = codes >> mantissa_bits, (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    normal = (1 + mantissa) * 2.0 ** (exponent - bias)
    found: NDArray[Any] = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    return found


def packed_signs(outputs: Sequence[Pooled], *, signed: bool) -> list[list[int]]:
    """Returns one bit per value, set if it is above 0, packed eight to a number.

    Args:
        signed: whether numbers start at -128 rather than 0.
    """
    bits = np.packbits(np.stack([rows_of(output) for output in outputs]) > 0, axis=-1).astype(np.int16)
    found: list[list[int]] = (bits - 128 if signed else bits).tolist()
    return found


def cosine(first: Pooled, second: Pooled) -> float:
    """Cosine similarity of two vectors; 0 if one has length 0."""
    a, b = rows_of(first).astype(np.float64), rows_of(second).astype(np.float64)
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 0.0


def max_similarity(query: Pooled, document: Pooled) -> float:
    """For each token of the query, the maximum dot product with the document's tokens, summed."""
    rows, others = rows_of(query), rows_of(document)
    step = max(1, _MOST_PRODUCTS // len(others))  # for two long texts, all at once would take hundreds of megabytes
    parts = (rows[start : start + step] @ others.T for start in range(0, len(rows), step))
    return float(sum(part.max(axis=1).sum(dtype=np.float64) for part in parts))
