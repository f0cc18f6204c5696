"""Quantizes 16-bit and 32-bit weights to codes while they are loaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine_svc.ops.grids import E4M3, INT4, INT8
from engine_svc.ops.weights import CodedWeight, Grid

# How many weights are in float32 at a time: as many as fit in a CPU's cache, or as a GPU computes at once.
_CHUNKS = {"cpu": 1 << 16, "cuda": 1 << 24}
_E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max
# The magnitudes tried for a group's greatest weight before clamping to -8 … 7. Beyond 8, the other weights get a finer
# step; below 8, a coarser one, which helps if a weight of the opposite sign is about as large, as codes end at 7.
_INT4_ENDS = (8.0, 7.3, 8.7, 9.4)

# float32 [groups, group] → codes uint8 [groups, group], and scales float32 [groups]
_Round = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def to_float8(weight: torch.Tensor) -> CodedWeight:
    """Quantizes [..., outputs, inputs] with a scale for each output."""
    return _coded(weight, weight.shape[-1], E4M3, _to_float8)


def to_int8(weight: torch.Tensor) -> CodedWeight:
    """Quantizes [..., outputs, inputs] with a scale for each output."""
    return _coded(weight, weight.shape[-1], INT8, _to_int8)


def to_int4(weight: torch.Tensor, group: int) -> CodedWeight:
    """Quantizes [..., outputs, inputs] with a scale for each output and group of inputs.

    Of a few candidate scales, it takes the one with the smallest error.
    """
    return _coded(weight, group, INT4, _to_int4)


def _coded(weight: torch.Tensor, group: int, grid: Grid, to_codes: _Round) -> CodedWeight:
    """Quantizes the rows in chunks, each row in groups of `group` inputs."""
    *many, inputs = weight.shape
    group = min(group, inputs)
    rows, groups = weight.reshape(-1, inputs), -(-inputs // group)
    codes = torch.empty((len(rows), inputs), dtype=torch.uint8, device=weight.device)
    scale = torch.empty((len(rows), groups), device=weight.device)
    for first in range(0, len(rows), step := max(1, _CHUNKS[weight.device.type] // inputs)):
        part = slice(first, first + step)
        padded = F.pad(rows[part].float(), (0, groups * group - inputs)).view(-1, group)
        found, steps = to_codes(padded)
        codes[part] = found.view(-1, groups * group)[:, :inputs]
        scale[part] = steps.view(-1, groups)
    return CodedWeight(grid, codes.view(weight.shape), scale.view(*many, groups), None, group)


def _to_float8(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = groups.abs().amax(-1) / _E4M3_MAX
    return (groups * _inverse(scale)).to(torch.float8_e4m3fn).view(torch.uint8), scale


def _to_int8(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = groups.abs().amax(-1) / 127
    return (groups * _inverse(scale)).round_().add_(128).to(torch.uint8), scale


def _to_int4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tries each of `_INT4_ENDS` and keeps the best.

    For given codes q, the scale w*q / q*q has the least squared error, which is w*w - (w*q)^2 / q*q. So the candidate
    with the greatest (w*q)^2 / q*q wins. Sums in float64 are exact: weights whose code is not 0 are within a factor
    of 32.
    """
    extremes = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    best, scale = groups.new_full((len(groups),), -1.0, dtype=torch.float64), torch.zeros_like(extremes[:, 0]).double()
    codes = torch.zeros_like(groups)
    for end in _INT4_ENDS:
        steps = (groups * _inverse(extremes[:, 0] / -end)).round_().clamp_(-8, 7)
        products, squares = (groups.double() * steps).sum(-1), steps.square().sum(-1)
        found = products / squares.clamp(min=1)
        better = found * products > best
        best = torch.where(better, found * products, best)
        scale = torch.where(better, found, scale)
        codes = torch.where(better[:, None], steps, codes)
    # bfloat16 scales are exact enough for four-bit codes, and take half the bytes.
    return codes.add_(8).to(torch.uint8), scale.float().bfloat16().float()


def _inverse(steps: torch.Tensor) -> torch.Tensor:
    """[groups] → 1 / steps as [groups, 1]; zero for zero."""
    return torch.where(steps != 0, 1 / steps, 0)[:, None]
