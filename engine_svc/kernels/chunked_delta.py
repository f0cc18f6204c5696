"""The gated delta rule over prompts, in chunks ("Gated Delta Networks", Yang, Kautz, Hatamizadeh 2024).

What a chunk's tokens add to the state are the rows of U, each times its key. With the decays since the beginning of the
chunk, strengths, and the state before it, they solve a triangular system (the paper's UT transform):

    (1 + A) U = strengths * (V - decays * K state)    with    A = strengths * decays * K K^T below the diagonal

so that outputs are decays * Q state + (decays * Q K^T) U, and the next state is decay * state + (decays * K)^T U.

The inverses of 1 + A do not depend on the state: a first kernel computes those of all chunks in parallel, by blockwise
forward substitution, which is accurate even if all keys of a chunk are alike. The second one goes through
the chunks of a sequence. All decays are exponentials of differences of sums that only fall, so none overflows.

Decays for each value of a key (Kimi Delta Attention) would have to be divided between the two factors of K K^T, where
they can overflow, so such layers process their prompts token by token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_svc.kernels.chunked_scan import ChunkTiles, chunk_rows
from engine_svc.kernels.overlap import await_inputs
from engine_svc.kernels.recurrence import NORM_EPSILON, held_tile, hold_tile, sequence_of, softplus

TILES = ChunkTiles(chunk=64, columns=32, warps=4, stages=2)
INVERSE_WARPS = 8
_BLOCK = tl.constexpr(16)


@triton.jit
def _over_length(rows):
    """1 over the length of each row."""
    wide = rows.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 1) + NORM_EPSILON)


@triton.jit
def _joined(inverse, matrix, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The inverse with diagonal blocks of twice the width, from the one with blocks of a width.

    Two neighbors P and Q, with C below P and left of Q, have the inverse of Q times -C times that of P in place of C.
    The products are TF32: chunks are this long only if the inverse is then rounded to bfloat16, which has fewer digits.
    """
    row, column = tl.arange(0, CHUNK)[:, None] // WIDTH, tl.arange(0, CHUNK)[None, :] // WIDTH
    below = tl.where((row % 2 == 1) & (row == column + 1), matrix, 0.0)
    right = tl.dot(below, inverse, input_precision="tf32")
    return inverse - tl.dot(inverse, right, input_precision="tf32")


@triton.jit
def _inverse(transposed, CHUNK: tl.constexpr):
    """Inverse of 1 + A, from A's transpose, which is zero from the diagonal on downwards.

    Blocks on the diagonal are inverted by forward substitution, all at once, and then joined.
    """
    blocks: tl.constexpr = CHUNK // _BLOCK
    place, block = tl.arange(0, _BLOCK), tl.arange(0, blocks)
    on_diagonal = block[:, None, None, None] == block[None, None, :, None]
    in_blocks = tl.reshape(transposed, (blocks, _BLOCK, blocks, _BLOCK))
    diagonal = tl.sum(tl.where(on_diagonal, in_blocks, 0.0), 2)
    found = tl.where(place[:, None] == place[None, :], 1.0, 0.0)[None, :, :] + tl.zeros_like(diagonal)
    for row in range(1, _BLOCK):
        factors = tl.sum(tl.where(place[None, None, :] == row, diagonal, 0.0), 2)
        update = tl.sum(factors[:, :, None] * found, 1)
        found -= tl.where(place[None, :, None] == row, update[:, None, :], 0.0)
    inverse = tl.reshape(tl.where(on_diagonal, found[:, :, None, :], 0.0), (CHUNK, CHUNK))
    matrix = tl.trans(transposed)
    if CHUNK > _BLOCK:
        inverse = _joined(inverse, matrix, _BLOCK, CHUNK)
    if CHUNK > 2 * _BLOCK:
        inverse = _joined(inverse, matrix, 2 * _BLOCK, CHUNK)
    return inverse


@triton.jit
def delta_chunks_kernel(
    query_ptr,
    key_ptr,
    step_ptr,
    strength_ptr,
    solve_ptr,
    score_ptr,
    factor_ptr,
    rate_ptr,
    bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    query_stride,
    key_stride,
    step_stride,
    strength_stride,
    tokens,
    heads,
    sharing,
    size,
    strongest,
    scale,
    few,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What chunks are computed with, apart from the state; one program per sequence, value head, and share of chunks.

    Stores, for each token and value head, the rows of two matrices [CHUNK, CHUNK]: the inverse times the strengths, and
    Q K^T with decays. `factor_ptr` gets float32 [4, tokens, heads]: factors of what keys and queries read from the
    state before the chunk, of what keys add to the state behind it, and of the state itself.
    """
    await_inputs()
    first, length, _, _ = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    if length <= few:
        return
    head, entry, time = tl.program_id(1), tl.arange(0, SIZE), tl.arange(0, CHUNK)
    kept, shared = entry < size, (head // sharing) * size + entry
    rate, bias = tl.load(rate_ptr + head), tl.load(bias_ptr + head)
    is_before = time[:, None] < time[None, :]
    for begin in range(tl.program_id(2) * CHUNK, length, tl.num_programs(2) * CHUNK):
        token, inside = first + begin + time, begin + time < length
        key = chunk_rows(key_ptr, token, key_stride, shared, inside, kept).to(OPERAND)
        query = chunk_rows(query_ptr, token, query_stride, shared, inside, kept).to(OPERAND)
        step = tl.load(step_ptr + token * step_stride + head, mask=inside, other=0.0).to(tl.float32)
        strength = tl.load(strength_ptr + token * strength_stride + head, mask=inside, other=0.0).to(tl.float32)
        strength = tl.where(inside, tl.sigmoid(strength) * strongest, 0.0)
        # No time passes at the places behind the last token.
        passed = tl.cumsum(tl.where(inside, rate * softplus(step + bias), 0.0), 0)
        whole = tl.min(passed, 0)
        of_key, of_query = _over_length(key), _over_length(query) * scale
        # Rows are earlier tokens and columns later ones.
        fades = tl.exp(tl.minimum(passed[None, :] - passed[:, None], 0.0)) * of_key[:, None]
        alike = tl.dot(key, tl.trans(key), input_precision=PRECISION) * fades * (of_key * strength)[None, :]
        solve = _inverse(tl.where(is_before, alike, 0.0), CHUNK) * strength[None, :]
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION) * fades * of_query[None, :]
        scores = tl.where(time[:, None] <= time[None, :], scores, 0.0)
        row = (token * heads + head) * CHUNK
        tl.store(solve_ptr + row[:, None] + time[None, :], solve, mask=inside[:, None])
        tl.store(score_ptr + row[None, :] + time[:, None], scores, mask=inside[None, :])
        to_factor = factor_ptr + token * heads + head
        tl.store(to_factor, tl.exp(passed) * of_key, mask=inside)
        tl.store(to_factor + tokens * heads, tl.exp(passed) * of_query, mask=inside)
        tl.store(to_factor + 2 * tokens * heads, tl.exp(whole - passed) * of_key, mask=inside)
        tl.store(to_factor + 3 * tokens * heads, tl.exp(whole + tl.zeros([CHUNK], tl.float32)), mask=inside)


@triton.jit
def chunked_delta_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    solve_ptr,
    score_ptr,
    factor_ptr,
    output_ptr,
    state_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    query_stride,
    key_stride,
    value_stride,
    tokens,
    heads,
    sharing,
    size,
    dim,
    few,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
    CHUNK: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per sequence of more than `few` tokens, value head, and tile of the head's numbers."""
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    if length <= few:
        return
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept, time = column < dim, entry < size, tl.arange(0, CHUNK)
    everywhere = time < CHUNK
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = held_tile(held_ptr, entry, column, size * is_known, dim)
    shared, numbers, matrix = (head // sharing) * size + entry, head * dim + column, head * CHUNK + time
    for begin in range(0, length, CHUNK):
        token, inside = first + begin + time, begin + time < length
        key = chunk_rows(key_ptr, token, key_stride, shared, inside, kept).to(OPERAND)
        query = chunk_rows(query_ptr, token, query_stride, shared, inside, kept).to(OPERAND)
        value = chunk_rows(value_ptr, token, value_stride, numbers, inside, own).to(tl.float32)
        solve = chunk_rows(solve_ptr, token, heads * CHUNK, matrix, inside, everywhere)
        scores = chunk_rows(score_ptr, token, heads * CHUNK, matrix, inside, everywhere)
        of_token = factor_ptr + token * heads + head
        recalled = tl.load(of_token, mask=inside, other=0.0)
        read = tl.load(of_token + tokens * heads, mask=inside, other=0.0)
        added = tl.load(of_token + 2 * tokens * heads, mask=inside, other=0.0)
        left = tl.load(factor_ptr + (3 * tokens + first + begin) * heads + head)
        before = state.to(OPERAND)
        value -= tl.dot(key, before, input_precision=PRECISION) * recalled[:, None]
        news = tl.dot(solve, value.to(OPERAND), input_precision=PRECISION)
        output = tl.dot(query, before, input_precision=PRECISION) * read[:, None]
        output = tl.dot(scores, news.to(OPERAND), output, input_precision=PRECISION)
        tl.store(
            output_ptr + token[:, None] * heads * dim + numbers[None, :], output, mask=inside[:, None] & own[None, :]
        )
        news = (news * added[:, None]).to(OPERAND)
        state = tl.dot(tl.trans(key), news, state * left, input_precision=PRECISION)
    hold_tile(held_ptr, state, entry, column, size, dim)
