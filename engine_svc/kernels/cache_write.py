"""Writes new keys and values into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.eight_bits import in_bytes, narrow
from engine_svc.kernels.overlap import await_inputs, begins_early


@triton.jit
def place_of(slot, BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr):
    """A slot's place, counted in rows from the layer's first, if SHARING layers share each block's memory."""
    if SHARING > 1:
        slot += slot // BLOCK_SIZE * (BLOCK_SIZE * (SHARING - 1))
    return slot


def layers_sharing(cache: torch.Tensor) -> int:
    """How many layers like this one have room in the memory of a block; see AttentionBackend.carve."""
    return cache.stride(1) // cache[0, 0].numel()


@triton.jit
def _write_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_stride,
    value_stride,
    MOST: tl.constexpr,
    ROW: tl.constexpr,
    ROW_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SHARING: tl.constexpr,
):
    """One program per token: copies its row, with all kv heads."""
    await_inputs()
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    if slot < 0:
        return
    place = place_of(slot, BLOCK_SIZE, SHARING)
    column = tl.arange(0, ROW_PADDED)
    inside = column < ROW
    key = tl.load(key_ptr + token.to(tl.int64) * key_stride + column, mask=inside)
    value = tl.load(value_ptr + token.to(tl.int64) * value_stride + column, mask=inside)
    key = narrow(key, key_cache_ptr.dtype.element_ty, MOST)
    value = narrow(value, value_cache_ptr.dtype.element_ty, MOST)
    tl.store(key_cache_ptr + place * ROW + column, key, mask=inside)
    tl.store(value_cache_ptr + place * ROW + column, value, mask=inside)


def write_cache(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Writes each token's key and value to its slot.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim]; heads contiguous, tokens at any stride.
        cache: [planes, num_blocks, block_size, num_kv_heads, head_dim]; may be of an 8-bit type, and have gaps
            between blocks, see AttentionBackend.carve.
        slot_mapping: int64 [num_tokens], block * block_size + offset; a token with a negative slot is not written.
    """
    row, held = key.shape[1] * key.shape[2], in_bytes(cache)
    _write_kernel[(key.shape[0],)](
        key, value, held[0], held[-1], slot_mapping, key.stride(0), value.stride(0),
        MOST=torch.finfo(cache.dtype).max if cache.dtype != key.dtype else 0.0,
        ROW=row, ROW_PADDED=triton.next_power_of_2(row), BLOCK_SIZE=cache.shape[2], SHARING=layers_sharing(cache),
        launch_pdl=begins_early(),
    )  # fmt: skip
