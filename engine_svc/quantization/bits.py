"""Unpacks codes of a few bits from 32-bit words, and makes weights from integer codes."""

from __future__ import annotations

import math

import torch

from engine_svc.ops.grids import INT4, INT8
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import Axis

_WORD = 32  # bits


def packed_along(side: Axis, bits: int) -> Axis:
    """The axis of a parameter that packs codes in words along `side`. Three-bit codes cross word boundaries."""
    shared = math.gcd(_WORD, bits)
    return Axis(side.along, features=_WORD // shared, entries=bits // shared)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., words], with codes from the lowest bit on → uint8 [..., codes]."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    eights = octets.unflatten(-1, (-1, bits))  # the bytes of eight codes
    numbers = eights[..., 0].int()
    for index in range(1, bits):
        numbers |= eights[..., index].int() << 8 * index
    codes = torch.empty((*numbers.shape, 8), dtype=torch.uint8, device=words.device)
    for index in range(8):
        codes[..., index] = numbers >> bits * index & (1 << bits) - 1
    return codes.flatten(-2)


def whole_numbers(
    codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor, bits: int, group: int | None,
    order: torch.Tensor | None = None,
) -> CodedWeight:  # fmt: skip
    """The weights (code - zero) * scale; exact if zeros are integers and scales have 16 bits.

    Args:
        codes: uint8 [..., outputs, inputs], unsigned; changed in place.
        zeros: [..., outputs, groups], of any type.
        scale: [..., outputs, groups]
        bits: of a code; codes of fewer than four bits become four-bit codes.
        group: number of inputs in a group; None means all.
        order: see CodedWeight.
    """
    middle = 1 << bits - 1
    grid = INT8 if bits == 8 else INT4
    codes += len(grid.values) // 2 - middle
    away = middle - zeros.float()
    scale = scale.float().contiguous()
    offset = (away * scale).contiguous() if away.any() else None
    return CodedWeight(grid, codes, scale, offset, group or codes.shape[-1], order)


def in_groups(
    codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor, bits: int, group: int, places: torch.Tensor,
    dtype: torch.dtype,
) -> Weight:  # fmt: skip
    """Like `whole_numbers`, for inputs assigned to groups in any order (act-order).

    If a rank has only some of a matrix's inputs, its groups may differ in size; then it makes a plain weight.

    Args:
        zeros, scale: of all groups of the matrix.
        places: [..., inputs], the group of each input; negative for the usual order.
        dtype: of the plain weight.

    Raises:
        ValueError: an input's group does not exist.
    """
    inputs, places = codes.shape[-1], places.long()
    if (places < 0).all():
        if scale.shape[-1] != -(-inputs // group):
            raise ValueError("it does not say which group each input belongs to, so the inputs cannot be divided")
        return whole_numbers(codes, zeros, scale, bits, group)
    if places.min() < 0 or places.max() >= scale.shape[-1]:
        raise ValueError(f"g_idx names groups {places.min()} to {places.max()}, but there are {scale.shape[-1]} groups")
    sorted_places, order = places.sort(dim=-1, stable=True)
    firsts = sorted_places[..., ::group]
    if not torch.equal(sorted_places, firsts.repeat_interleave(group, -1)[..., :inputs]):
        each = places[..., None, :].expand(codes.shape)
        return ((codes - zeros.int().gather(-1, each)) * scale.gather(-1, each)).to(dtype)
    mine = firsts[..., None, :].expand(*scale.shape[:-1], firsts.shape[-1])
    zeros, scale = zeros.gather(-1, mine), scale.gather(-1, mine)
    if torch.equal(places, sorted_places):
        return whole_numbers(codes, zeros, scale, bits, group)
    codes = codes.gather(-1, order[..., None, :].expand(codes.shape))
    return whole_numbers(codes, zeros, scale, bits, group, order)
