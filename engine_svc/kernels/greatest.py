"""The token with the greatest logit of each row, in two kernels: one for chunks of the vocabulary, one for rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

_CHUNK = 4096  # tokens


@triton.jit
def _first_greatest(values, tokens):
    """The greatest value, NaN if any is, and the smallest token that has it."""
    is_nan = tl.max((values != values).to(tl.int32), 0) > 0
    greatest = tl.max(tl.where(values != values, float("-inf"), values), 0)
    token = tl.min(tl.where(values == greatest, tokens, 2147483647), 0)
    return tl.where(is_nan, float("nan"), greatest), token


@triton.jit
def _chunk_kernel(logits_ptr, value_ptr, token_ptr, logits_stride, vocab_size, CHUNK: tl.constexpr):
    """One program per row and chunk."""
    await_inputs()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = tl.load(logits_ptr + row * logits_stride + tokens, mask=tokens < vocab_size, other=float("-inf"))
    value, token = _first_greatest(logits, tokens)
    place = row * tl.num_programs(1) + chunk
    tl.store(value_ptr + place, value)
    tl.store(token_ptr + place, token)


@triton.jit
def _row_kernel(value_ptr, token_ptr, token_id_ptr, broken_ptr, chunks, CHUNKS: tl.constexpr):
    """One program per row."""
    await_inputs()
    row, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS)
    values = tl.load(value_ptr + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    tokens = tl.load(token_ptr + row * chunks + chunk, mask=chunk < chunks, other=2147483647)
    value, token = _first_greatest(values, tokens)
    is_sound = tl.abs(value) < float("inf")
    tl.store(token_id_ptr + row, tl.where(is_sound, token, 0).to(tl.int64))
    tl.store(broken_ptr + row, tl.where(is_sound, 0, 1).to(tl.uint8))


def greatest_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Args:
        logits: float32 [rows, vocabulary], each row contiguous.

    Returns:
        The tokens, int64 [rows], of equal ones the first, and bool [rows]: whether a row's greatest logit is not
        finite, and its token 0.
    """
    rows, vocab_size = logits.shape
    chunks = triton.cdiv(vocab_size, _CHUNK)
    values = logits.new_empty((rows, chunks))
    tokens = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    broken = torch.empty(rows, dtype=torch.bool, device=logits.device)
    _chunk_kernel[(rows, chunks)](
        logits, values, tokens, logits.stride(0), vocab_size, CHUNK=_CHUNK, num_warps=8, launch_pdl=begins_early()
    )
    _row_kernel[(rows,)](
        values, tokens, token_ids, broken.view(torch.uint8), chunks, CHUNKS=triton.next_power_of_2(chunks),
        num_warps=1, launch_pdl=begins_early(),
    )  # fmt: skip
    return token_ids, broken
