"""The experts of one token, in two kernels: nothing is sorted, and the second kernel also sums the experts' results.

As in single_row.py, each program has all inputs of some outputs; it first reads which experts' matrices to use.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.activation import NamedActivation, gated
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.single_row import MatrixTiles, single_row_tiles

DOWN = MatrixTiles(4, 1024, 4)  # the fastest that benchmarks/tiles.py tries on an H100


class Stack(NamedTuple):
    """The matrices of all experts, with biases."""

    weight: torch.Tensor  # [experts, outputs, inputs], contiguous
    bias: torch.Tensor | None  # [experts, outputs], contiguous


@triton.jit
def _gate_up_kernel(
    input_ptr, weight_ptr, bias_ptr, id_ptr, output_ptr, outputs, SIZE: tl.constexpr, BIAS: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """One program per choice and tile of outputs. Outputs of a choice without an expert are not written."""
    await_inputs()
    choice = tl.program_id(1)
    expert = tl.load(id_ptr + choice)
    if expert < 0:
        return
    column = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    k = tl.arange(0, TILE_K)
    begins = weight_ptr + (expert * outputs + column)[:, None] * SIZE + k[None, :]
    weight = tl.load(begins, mask=within[:, None] & (k < SIZE)[None, :], other=0.0)
    sums = tl.zeros([TILE_N, TILE_K], tl.float32)
    for begin in range(0, SIZE, TILE_K):
        coming = begin + TILE_K + k < SIZE
        following = tl.load(begins + begin + TILE_K, mask=within[:, None] & coming[None, :], other=0.0)
        values = tl.load(input_ptr + begin + k, mask=begin + k < SIZE, other=0.0)
        sums += weight.to(tl.float32) * values.to(tl.float32)[None, :]
        weight = following
    result = tl.sum(sums, 1)
    if BIAS:
        result += tl.load(bias_ptr + expert * outputs + column, mask=within, other=0.0).to(tl.float32)
    tl.store(output_ptr + choice * outputs + column, result.to(output_ptr.dtype.element_ty), mask=within)


@triton.jit
def _load_down(
    step, weight_ptr, id_ptr, column, outputs, SIZE: tl.constexpr, CHOSEN: tl.constexpr, TILES: tl.constexpr,
    TILE_K: tl.constexpr,
):  # fmt: skip
    """Loads tile `step`, counting all choices' tiles consecutively; zeros if there is no such tile."""
    present = step < CHOSEN * TILES
    expert = tl.load(id_ptr + step // TILES, mask=present, other=-1)
    k = step % TILES * TILE_K + tl.arange(0, TILE_K)
    rows = (tl.maximum(expert, 0) * outputs + column)[:, None] * SIZE
    mask = (column < outputs)[:, None] & (k < tl.where(expert < 0, 0, SIZE))[None, :]
    return tl.load(weight_ptr + rows + k[None, :], mask=mask, other=0.0)


@triton.jit
def _down_kernel(
    gate_up_ptr, weight_ptr, bias_ptr, id_ptr, share_ptr, output_ptr, slope, limit, outputs, SIZE: tl.constexpr,
    CHOSEN: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """One program per tile of outputs: sums all choices' products with their activated inputs, times their shares."""
    await_inputs()
    tiles: tl.constexpr = (SIZE + TILE_K - 1) // TILE_K
    column = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    sums = tl.zeros([TILE_N, TILE_K], tl.float32)
    weight = _load_down(0, weight_ptr, id_ptr, column, outputs, SIZE, CHOSEN, tiles, TILE_K)
    for step in range(CHOSEN * tiles):
        following = _load_down(step + 1, weight_ptr, id_ptr, column, outputs, SIZE, CHOSEN, tiles, TILE_K)
        choice = step // tiles
        expert = tl.load(id_ptr + choice)
        share = tl.load(share_ptr + choice, mask=expert >= 0, other=0.0)
        k = step % tiles * TILE_K + tl.arange(0, TILE_K)
        inside = k < tl.where(expert < 0, 0, SIZE)
        gate = tl.load(gate_up_ptr + choice * 2 * SIZE + k, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up_ptr + choice * 2 * SIZE + SIZE + k, mask=inside, other=0.0).to(tl.float32)
        values = gated(gate, up, slope, limit, KIND).to(gate_up_ptr.dtype.element_ty).to(tl.float32)
        sums += weight.to(tl.float32) * (values * share)[None, :]
        weight = following
    result = tl.sum(sums, 1)
    if BIAS:
        for choice in range(CHOSEN):
            expert = tl.load(id_ptr + choice)
            share = tl.load(share_ptr + choice, mask=expert >= 0, other=0.0)
            mask = column < tl.where(expert < 0, 0, outputs)
            result += share * tl.load(bias_ptr + expert * outputs + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(output_ptr + column, result.to(output_ptr.dtype.element_ty), mask=within)


def single_row_experts(
    hidden: torch.Tensor,
    gate_up: Stack,
    down: Stack,
    shares: torch.Tensor,
    expert_ids: torch.Tensor,
    activation: NamedActivation,
    tiles: tuple[MatrixTiles, MatrixTiles] | None = None,
) -> torch.Tensor:
    """The weighted sum of gated experts.

    Args:
        hidden: [1, size], contiguous.
        shares: float32 [1, chosen], the weight of each choice.
        expert_ids: int64 [1, chosen], contiguous; -1 for a choice that adds nothing.
        tiles: of both products. None means the fastest known.

    Returns:
        [1, size]
    """
    (outputs, size), (hidden_size, inner), chosen = gate_up.weight.shape[1:], down.weight.shape[1:], expert_ids.shape[1]
    inside, output = hidden.new_empty((chosen, outputs)), hidden.new_empty((1, hidden_size))
    of_first, of_second = tiles or (single_row_tiles(size), DOWN)
    _gate_up_kernel[(triton.cdiv(outputs, of_first.outputs), chosen)](
        hidden, gate_up.weight, gate_up.bias, expert_ids, inside, outputs, SIZE=size, BIAS=gate_up.bias is not None,
        TILE_N=of_first.outputs, TILE_K=of_first.inputs, num_warps=of_first.warps, launch_pdl=begins_early(),
    )  # fmt: skip
    _down_kernel[(triton.cdiv(hidden_size, of_second.outputs),)](
        inside, down.weight, down.bias, expert_ids, shares.contiguous(), output, activation.slope,
        activation.limit, hidden_size, SIZE=inner, CHOSEN=chosen, KIND=activation.kind, BIAS=down.bias is not None,
        TILE_N=of_second.outputs, TILE_K=of_second.inputs, num_warps=of_second.warps, launch_pdl=begins_early(),
    )  # fmt: skip
    return output
