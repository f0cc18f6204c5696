"""Unpacks GGUF's block types to codes, and the scales and offsets of their groups.

All are exact: the dequantized values equal those of llama.cpp's reference code bit for bit in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine_svc.ops.grids import INT4, INT8
from engine_svc.ops.weights import Grid
from quire.gguf.types import TYPES

_NAMED = {each.name: each for each in TYPES.values()}
# For formats with a minimum in addition to the scale.
_UINT4 = Grid("uint4", tuple(float(code) for code in range(16)))
_IQ4 = Grid("iq4_nl", (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
                       89.0, 113.0))  # fmt: skip
# Twice the values of OCP's E2M1, as the scales here are half of OCP's.
_E2M1 = Grid("e2m1 doubled", (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0))


class Unpacked(NamedTuple):
    """The result for blocks [..., bytes]."""

    codes: torch.Tensor  # uint8 [..., values of a block]
    scale: torch.Tensor  # float32 [..., groups of a block]
    offset: torch.Tensor | None = None


@dataclass(frozen=True)
class BlockForm:
    """How to read blocks of a type."""

    grid: Grid
    group: int  # values that share a scale
    unpack: Callable[[torch.Tensor], Unpacked]


def _half(block: torch.Tensor, first: int) -> torch.Tensor:
    """The float16 at byte `first`, as float32 [..., 1]."""
    return block[..., first : first + 2].contiguous().view(torch.float16).float()


def _bits(packed: torch.Tensor, width: int, run: int) -> torch.Tensor:
    """Unpacks numbers of `width` bits: each run of bytes gives the numbers in its lowest bits, then in the next ones.

    Returns:
        uint8 [..., numbers]
    """
    parts = packed.unflatten(-1, (-1, 1, run))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)[:, None]
    return ((parts >> shifts) & ((1 << width) - 1)).flatten(-3)


def _q4_0(block: torch.Tensor) -> Unpacked:
    return Unpacked(_bits(block[..., 2:], 4, 16), _half(block, 0))


def _q4_1(block: torch.Tensor) -> Unpacked:
    return Unpacked(_bits(block[..., 4:], 4, 16), _half(block, 0), _half(block, 2))


def _q5_0(block: torch.Tensor) -> Unpacked:
    high = _bits(block[..., 2:6], 1, 1) << 4
    return Unpacked((_bits(block[..., 6:], 4, 16) | high) + (128 - 16), _half(block, 0))


def _q5_1(block: torch.Tensor) -> Unpacked:
    high = _bits(block[..., 4:8], 1, 1) << 4
    return Unpacked((_bits(block[..., 8:], 4, 16) | high) + 128, _half(block, 0), _half(block, 2))


def _q8_0(block: torch.Tensor) -> Unpacked:
    return Unpacked(block[..., 2:] ^ 128, _half(block, 0))


def _q2_k(block: torch.Tensor) -> Unpacked:
    scales, minima = block[..., :16] & 15, block[..., :16] >> 4
    codes = _bits(block[..., 16:80], 2, 32) + 8
    return Unpacked(codes, _half(block, 80) * scales, -(_half(block, 82) * minima))


def _q3_k(block: torch.Tensor) -> Unpacked:
    """Four is subtracted from a code unless its bit in the mask is set; scales have six bits, minus 32."""
    above = _bits(block[..., :32], 1, 32) << 2
    codes = (_bits(block[..., 32:96], 2, 32) | above) + (8 - 4)
    low, high = _bits(block[..., 96:104], 4, 8), _bits(block[..., 104:108], 2, 4)
    scales = (low | (high << 4)).float() - 32
    return Unpacked(codes, _half(block, 108) * scales)


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpacks eight scales and eight minima of six bits each from twelve bytes.

    The first four of each are in the lower six bits of the first and second four bytes. The other four have their two
    highest bits above those, and their lowest four bits in the last four bytes.
    """
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), -1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), -1)
    return scales, minima


def _q4_k(block: torch.Tensor) -> Unpacked:
    scales, minima = _scales_and_minima(block[..., 4:16])
    return Unpacked(_bits(block[..., 16:], 4, 32), _half(block, 0) * scales, -(_half(block, 2) * minima))


def _q5_k(block: torch.Tensor) -> Unpacked:
    scales, minima = _scales_and_minima(block[..., 4:16])
    codes = _bits(block[..., 48:], 4, 32) | (_bits(block[..., 16:48], 1, 32) << 4)
    return Unpacked(codes + 128, _half(block, 0) * scales, -(_half(block, 2) * minima))


def _q6_k(block: torch.Tensor) -> Unpacked:
    codes = _bits(block[..., :128], 4, 64) | (_bits(block[..., 128:192], 2, 32) << 4)
    return Unpacked(codes + (128 - 32), _half(block, 208) * block[..., 192:208].view(torch.int8))


def _iq4_xs(block: torch.Tensor) -> Unpacked:
    high = _bits(block[..., 2:4], 2, 1)
    low = _bits(block[..., 4:8], 4, 1)
    scales = (low | (high << 4)).float() - 32
    return Unpacked(_bits(block[..., 8:], 4, 16), _half(block, 0) * scales)


def _mxfp4(block: torch.Tensor) -> Unpacked:
    """The scale is a power of two, and its byte is the exponent."""
    exponent = block[..., :1].int()
    bits = torch.where(exponent < 2, 1 << (21 + exponent.clamp(max=1)), (exponent - 1).clamp(min=0) << 23)
    return Unpacked(_bits(block[..., 1:], 4, 16), bits.view(torch.float32))


# By type name: the types whose codes products can take without dequantizing.
FORMS: Mapping[str, BlockForm] = {
    "Q4_0": BlockForm(INT4, 32, _q4_0),
    "Q4_1": BlockForm(_UINT4, 32, _q4_1),
    "Q5_0": BlockForm(INT8, 32, _q5_0),
    "Q5_1": BlockForm(INT8, 32, _q5_1),
    "Q8_0": BlockForm(INT8, 32, _q8_0),
    "Q2_K": BlockForm(INT4, 16, _q2_k),
    "Q3_K": BlockForm(INT4, 16, _q3_k),
    "Q4_K": BlockForm(_UINT4, 32, _q4_k),
    "Q5_K": BlockForm(INT8, 32, _q5_k),
    "Q6_K": BlockForm(INT8, 16, _q6_k),
    "IQ4_NL": BlockForm(_IQ4, 32, _q4_0),
    "IQ4_XS": BlockForm(_IQ4, 32, _iq4_xs),
    "MXFP4": BlockForm(_E2M1, 32, _mxfp4),
}


def block_size(name: str) -> tuple[int, int]:
    """The number of values and of bytes of a block."""
    return _NAMED[name].values, _NAMED[name].bytes
