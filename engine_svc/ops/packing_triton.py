"""Coded weights as the Triton kernels read them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.kernels.coded import AS_E2M1, AS_E4M3, AS_E5M2, LOOKED_UP, WHOLE, PackedCodes
from engine_svc.ops.base import Rows, rows_within
from engine_svc.ops.grids import E2M1, E4M3, E5M2, INT4, INT8
from engine_svc.ops.weights import CodedWeight, Grid, Int8Weight

ROW_ALIGNMENT = 16  # bytes of a row of codes are padded to a multiple of what a thread loads at a time
_KINDS = {INT4: WHOLE, INT8: WHOLE, E4M3: AS_E4M3, E5M2: AS_E5M2, E2M1: AS_E2M1}


def pack_codes(weight: CodedWeight) -> PackedCodes:
    """Packs a matrix [outputs, inputs], or the matrices of experts [experts, outputs, inputs]."""
    inputs = weight.shape[-1]
    codes = weight.codes.reshape(-1, *weight.shape[-2:])
    if weight.grid.bits == 4:
        even, odd = codes[..., 0::2], codes[..., 1::2]
        codes = even | F.pad(odd, (0, even.shape[-1] - odd.shape[-1])) << 4
    codes = F.pad(codes, (0, -codes.shape[-1] % ROW_ALIGNMENT))
    groups = weight.scale.reshape(len(codes), codes.shape[1], -1).contiguous()
    kind = _KINDS.get(weight.grid, LOOKED_UP)
    return PackedCodes(
        kind=int(kind),
        zero=int(-weight.grid.values[0]) if kind == WHOLE else 0,
        bits=weight.grid.bits,
        codes=codes.contiguous(),
        scale=groups,
        offset=None if weight.offset is None else weight.offset.reshape(groups.shape).contiguous(),
        order=None if weight.order is None else weight.order.reshape(len(codes), inputs).contiguous(),
        table=torch.tensor(weight.grid.values, device=codes.device) if kind == LOOKED_UP else None,
        group=weight.group,
        inputs=inputs,
    )


def pack_int8(weight: Int8Weight) -> PackedCodes:
    """A matrix [outputs, inputs], whose values are not copied; its rows must be a multiple of 16 bytes."""
    return PackedCodes(
        kind=int(WHOLE),
        zero=128,
        bits=8,
        codes=weight.values.contiguous().view(torch.uint8)[None],
        scale=weight.scale[None, :, None].contiguous(),
        offset=None,
        order=None,
        table=None,
        group=weight.shape[-1],
        inputs=weight.shape[-1],
        takes_int8=True,
    )


def packed_rows(packed: PackedCodes, grid: Grid) -> Rows | None:
    """Looks up rows of a single packed matrix; None where its inputs are reordered."""
    if packed.order is not None:
        return None

    def look_up(indices: torch.Tensor) -> torch.Tensor:
        codes, offset = packed.codes[0, indices], packed.offset
        if packed.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        codes = codes[:, : packed.inputs]
        offset = None if offset is None else offset[0, indices]
        return CodedWeight(grid, codes, packed.scale[0, indices], offset, packed.group).wide(torch.float32)

    return rows_within(packed.outputs, look_up)
