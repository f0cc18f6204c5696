"""Matrices in the formats of checkpoints with 8-bit and 4-bit floating-point numbers, and with 8-bit integers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.support.quantized import Matrix, packed

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def greatest(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The greatest absolute value of each block of outputs and inputs; the last blocks may be smaller."""
    rows, columns = (min(each) for each in zip(block, weight.shape, strict=True))
    padded = F.pad(weight.abs(), (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    return padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).amax((1, 3))


def spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Expands the scales of blocks to all of their weights, in float64."""
    rows, columns = (min(each) for each in zip(block, shape, strict=True))
    wide = scales.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: shape[0], : shape[1]]


def float8(
    weight: torch.Tensor, block: tuple[int, int] | None = None, *, scale: str = "weight_scale", flat: bool = False,
    inputs: str = "",
) -> Matrix:  # fmt: skip
    """A matrix of FP8 values.

    Args:
        block: size of the blocks that have a scale each; None means one scale for the whole matrix.
        scale: name of the scales.
        flat: whether the scales of outputs have one dimension.
        inputs: name of the scale of inputs; empty means that there is none.
    """
    sizes = block or (weight.shape[0], weight.shape[1])
    scales = greatest(weight, sizes) / 448
    codes = (weight / spread(scales, sizes, weight.shape)).to(torch.float8_e4m3fn)
    written = scales.flatten() if flat else scales.squeeze() if block is None else scales
    tensors = {"weight": codes, scale: written} | ({inputs: torch.tensor(0.5)} if inputs else {})
    return Matrix(tensors, codes.double() * spread(scales, sizes, weight.shape))


def int8(weight: torch.Tensor, *, flat: bool = False, whole: bool = False) -> Matrix:
    """A matrix of 8-bit integers, with a scale for each output or one for the whole matrix."""
    sizes = (weight.shape[0] if whole else 1, weight.shape[1])
    scales = greatest(weight, sizes) / 127
    values = (weight / spread(scales, sizes, weight.shape)).round().to(torch.int8)
    written = scales.flatten() if flat else scales
    return Matrix({"weight": values, "weight_scale": written}, values * spread(scales, sizes, weight.shape))


def float4(weight: torch.Tensor, group: int, name: str, *, factor: str = "", divides: bool = False) -> Matrix:
    """A matrix of FP4 values.

    Args:
        factor: name of the scale of the whole matrix, with which groups have E4M3 scales; empty means that groups'
            scales are exponents.
        divides: whether the scale of the whole matrix divides.
    """
    scales = greatest(weight, (1, group)) / 6
    whole = scales.max() / 448
    if factor:
        scales = (scales / whole).to(torch.float8_e4m3fn)
        wide = scales.double() * whole.double()
    else:
        scales = (scales.log2().ceil() + 127).to(torch.uint8)
        wide = 2.0 ** (scales.double() - 127)
    steps = spread(wide, (1, group), weight.shape)
    codes = ((weight / steps)[..., None] - E2M1).abs().argmin(-1)
    tensors = {name: (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8), "weight_scale": scales}
    if factor:
        tensors[factor] = 1 / whole if divides else whole
    return Matrix(tensors, E2M1[codes].double() * steps)


def words(
    weight: torch.Tensor, bits: int, group: int | None, *, symmetric: bool = True, shuffled: bool = False
) -> Matrix:
    """A matrix as packed by compressed-tensors: words along the inputs, those of zero points along the outputs."""
    outputs, inputs = weight.shape
    size, middle = group or inputs, 1 << bits - 1
    places = torch.arange(inputs) // size
    if shuffled:
        places = places[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    count = math.ceil(inputs / size)
    scales = torch.stack([weight[:, places == each].abs().amax(1) for each in range(count)], 1) / (middle - 1)
    zeros = torch.zeros(outputs, count, dtype=torch.long)
    if not symmetric:
        zeros = torch.randint(-1, 2, zeros.shape, generator=torch.Generator().manual_seed(1))
    codes = ((weight / scales[:, places]).round() + zeros[:, places]).clamp(-middle, middle - 1).long()
    tensors = {"weight_packed": packed(codes + middle, bits), "weight_scale": scales}
    tensors["weight_shape"] = torch.tensor([outputs, inputs])
    if not symmetric:
        tensors["weight_zero_point"] = packed((zeros + middle).t(), bits).t().contiguous()
    if shuffled:
        tensors["weight_g_idx"] = places.int()
    return Matrix(tensors, (codes - zeros[:, places]).double() * scales[:, places].double())
