"""Recurrent layers: each program goes through one sequence's tokens in order, with its part of the state in registers.

So a token's arithmetic is the same alone or among others, however a prompt is split and whatever else is in the batch.
States of fewer than 32 bits are rounded after each token.

The time for a sequence is the latency of its chain of tokens. So programs are single warps, which sum over a state
without synchronization, and the next token's data is loaded while the current token is computed. Prompts have kernels
of their own, in chunked_scan.py and chunked_delta.py, unless they must be batch-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs

TILE_UNITS = 32
WARPS = 1
_NORMED = 2048  # the numbers that a program norms, if a group has fewer
_NUMBERS = 1024  # the most numbers of a state per program: 32 registers of each thread
_COLUMNS = 16  # the most columns of a state per program, so that all schedulers of a GPU have programs
_PROGRAMS = 1 << 15  # a GPU runs some thousands at a time
_FEWEST_SHARES = 8
NORM_EPSILON = tl.constexpr(1e-6)  # for queries and keys of the delta rule


@triton.jit
def softplus(value):
    """log(1 + exp(value)), accurate also where the exponential is small beside 1."""
    small = tl.exp(-tl.abs(value))
    whole = 1.0 + small
    added = tl.where(whole == 1.0, small, tl.log(whole) * (small / (whole - 1.0)))
    return tl.maximum(value, 0.0) + added


@triton.jit
def sequence_of(start_ptr, slot_ptr, fresh_ptr):
    """The sequence of this program, by the first axis: its first token, its number of tokens, its slot, and whether the
    slot already holds a state of it (0 or 1)."""
    index = tl.program_id(0)
    first = tl.load(start_ptr + index).to(tl.int64)
    length = (tl.load(start_ptr + index + 1).to(tl.int64) - first).to(tl.int32)
    return first, length, tl.load(slot_ptr + index).to(tl.int64), 1 - tl.load(fresh_ptr + index).to(tl.int32)


@triton.jit
def as_stored(value, state_ptr):
    """The value rounded to the state's type, in float32."""
    return value.to(state_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def held_tile(held_ptr, row, column, rows, columns):
    """Loads a tile of a matrix in float32; 0 past its last row and column."""
    where = held_ptr + row[:, None] * columns + column[None, :]
    return tl.load(where, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0).to(tl.float32)


@triton.jit
def hold_tile(held_ptr, values, row, column, rows, columns):
    """Stores a tile; the counterpart of `held_tile`."""
    where = held_ptr + row[:, None] * columns + column[None, :]
    tl.store(where, values, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _hold_at_target(state_ptr, target_ptr, token, values, row, column, rows, columns, head, heads):
    """Stores a tile of a head's state after a token in the slot that is the token's target, if it has one."""
    target = tl.load(target_ptr + token)
    held_ptr = state_ptr + (tl.maximum(target, 0) * heads + head) * rows * columns
    hold_tile(held_ptr, values, row, column, rows * (target >= 0).to(tl.int32), columns)


@triton.jit
def _of_token(pointer, token, stride, column, wanted):
    """Loads columns of a token's row in their own type; 0 where not wanted."""
    return tl.load(pointer + token * stride + column, mask=wanted, other=0.0)


@triton.jit
def _first_of(first, length):
    """The first token; any valid one if the sequence is empty."""
    return tl.maximum(first + tl.minimum(length, 1) - 1, 0)


@triton.jit
def _next_of(first, time, length):
    """The token after the one at `time`, or the last one again."""
    return first + tl.minimum(time + 1, length - 1)


@triton.jit
def scan_channels_kernel(
    hidden_ptr,
    step_ptr,
    write_ptr,
    read_ptr,
    gate_ptr,
    output_ptr,
    state_ptr,
    rate_ptr,
    skip_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    target_ptr,
    hidden_stride,
    step_stride,
    write_stride,
    read_stride,
    gate_stride,
    channels,
    size,
    HAS_TARGETS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_C: tl.constexpr,
):
    """One program per sequence and tile of channels."""
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    channel, entry = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C), tl.arange(0, SIZE)
    own, kept = channel < channels, entry < size
    held_ptr = state_ptr + slot * size * channels
    state = held_tile(held_ptr, entry, channel, size * is_known, channels)
    rates = held_tile(rate_ptr, entry, channel, size, channels)
    skip = tl.load(skip_ptr + channel, mask=own, other=0.0)
    token = _first_of(first, length)
    next_hidden = _of_token(hidden_ptr, token, hidden_stride, channel, own)
    next_step = _of_token(step_ptr, token, step_stride, channel, own)
    next_write = _of_token(write_ptr, token, write_stride, entry, kept)
    next_read = _of_token(read_ptr, token, read_stride, entry, kept)
    next_gate = _of_token(gate_ptr, token, gate_stride, channel, own)
    for time in range(length):
        hidden, step = next_hidden.to(tl.float32), next_step.to(tl.float32)
        write, read, gate = next_write.to(tl.float32), next_read.to(tl.float32), next_gate.to(tl.float32)
        token = _next_of(first, time, length)
        next_hidden = _of_token(hidden_ptr, token, hidden_stride, channel, own)
        next_step = _of_token(step_ptr, token, step_stride, channel, own)
        next_write = _of_token(write_ptr, token, write_stride, entry, kept)
        next_read = _of_token(read_ptr, token, read_stride, entry, kept)
        next_gate = _of_token(gate_ptr, token, gate_stride, channel, own)
        step = softplus(step)
        state = state * tl.exp(step[None, :] * rates) + (step * hidden)[None, :] * write[:, None]
        output = tl.sum(state * read[:, None], 0) + hidden * skip
        tl.store(output_ptr + (first + time) * channels + channel, output * gate * tl.sigmoid(gate), mask=own)
        state = as_stored(state, state_ptr)
        if HAS_TARGETS:
            _hold_at_target(state_ptr, target_ptr, first + time, state, entry, channel, size, channels, 0, 1)
    if not HAS_TARGETS:
        hold_tile(held_ptr, state, entry, channel, size * tl.minimum(length, 1), channels)


@triton.jit
def scan_heads_kernel(
    hidden_ptr,
    step_ptr,
    write_ptr,
    read_ptr,
    output_ptr,
    state_ptr,
    rate_ptr,
    skip_ptr,
    bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    target_ptr,
    hidden_stride,
    step_stride,
    write_stride,
    read_stride,
    heads,
    sharing,
    size,
    dim,
    least,
    most,
    few,
    HAS_TARGETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """One program per sequence, head, and tile of the head's numbers.

    Sequences of more than `few` tokens are left out.
    """
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    if length > few:
        return
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept = column < dim, entry < size
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = held_tile(held_ptr, entry, column, size * is_known, dim)
    rate, skip = tl.load(rate_ptr + head), tl.load(skip_ptr + head)
    group, numbers = (head // sharing) * size + entry, head * dim + column
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + head)
    token = _first_of(first, length)
    next_hidden = _of_token(hidden_ptr, token, hidden_stride, numbers, own)
    next_step = tl.load(step_ptr + token * step_stride + head)
    next_write = _of_token(write_ptr, token, write_stride, group, kept)
    next_read = _of_token(read_ptr, token, read_stride, group, kept)
    for time in range(length):
        hidden, step = next_hidden.to(tl.float32), next_step.to(tl.float32)
        write, read = next_write.to(tl.float32), next_read.to(tl.float32)
        token = _next_of(first, time, length)
        next_hidden = _of_token(hidden_ptr, token, hidden_stride, numbers, own)
        next_step = tl.load(step_ptr + token * step_stride + head)
        next_write = _of_token(write_ptr, token, write_stride, group, kept)
        next_read = _of_token(read_ptr, token, read_stride, group, kept)
        if HAS_BIAS:
            step += bias
        step = tl.minimum(tl.maximum(softplus(step), least), most)
        state = state * tl.exp(step * rate) + write[:, None] * (hidden * step)[None, :]
        output = tl.sum(state * read[:, None], 0) + hidden * skip
        tl.store(output_ptr + (first + time) * heads * dim + numbers, output, mask=own)
        state = as_stored(state, state_ptr)
        if HAS_TARGETS:
            _hold_at_target(state_ptr, target_ptr, first + time, state, entry, column, size, dim, head, heads)
    if not HAS_TARGETS:
        hold_tile(held_ptr, state, entry, column, size * tl.minimum(length, 1), dim)


@triton.jit
def _unit(vector):
    return vector * tl.rsqrt(tl.sum(vector * vector, 0) + NORM_EPSILON)


@triton.jit
def _steps(pointer, head, entry, size, BY_KEY: tl.constexpr):
    """A head's values: with BY_KEY one for each entry of its state, else one for all."""
    return tl.load(pointer + head * size + entry, mask=entry < size, other=0.0) if BY_KEY else tl.load(pointer + head)


@triton.jit
def delta_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    step_ptr,
    strength_ptr,
    output_ptr,
    state_ptr,
    rate_ptr,
    bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    target_ptr,
    query_stride,
    key_stride,
    value_stride,
    step_stride,
    strength_stride,
    heads,
    sharing,
    size,
    dim,
    strongest,
    scale,
    few,
    HAS_TARGETS: tl.constexpr,
    BY_KEY: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """One program per sequence, value head, and tile of the head's numbers.

    Sequences of more than `few` tokens are left out.
    """
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    if length > few:
        return
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept = column < dim, entry < size
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = held_tile(held_ptr, entry, column, size * is_known, dim)
    rate = tl.load(rate_ptr + head)
    shared, numbers = (head // sharing) * size + entry, head * dim + column
    bias = _steps(bias_ptr, head, entry, size, BY_KEY)
    token = _first_of(first, length)
    next_query = _of_token(query_ptr, token, query_stride, shared, kept)
    next_key = _of_token(key_ptr, token, key_stride, shared, kept)
    next_value = _of_token(value_ptr, token, value_stride, numbers, own)
    next_step = _steps(step_ptr + token * step_stride, head, entry, size, BY_KEY)
    next_strength = tl.load(strength_ptr + token * strength_stride + head)
    for time in range(length):
        query, key, value = next_query.to(tl.float32), next_key.to(tl.float32), next_value.to(tl.float32)
        step, strength = next_step.to(tl.float32), next_strength.to(tl.float32)
        token = _next_of(first, time, length)
        next_query = _of_token(query_ptr, token, query_stride, shared, kept)
        next_key = _of_token(key_ptr, token, key_stride, shared, kept)
        next_value = _of_token(value_ptr, token, value_stride, numbers, own)
        next_step = _steps(step_ptr + token * step_stride, head, entry, size, BY_KEY)
        next_strength = tl.load(strength_ptr + token * strength_stride + head)
        query, key = _unit(query) * scale, _unit(key)
        fading = tl.exp(rate * softplus(step + bias))
        state *= fading[:, None] if BY_KEY else fading
        news = (value - tl.sum(state * key[:, None], 0)) * (tl.sigmoid(strength) * strongest)
        state += key[:, None] * news[None, :]
        output = tl.sum(state * query[:, None], 0)
        tl.store(output_ptr + (first + time) * heads * dim + numbers, output, mask=own)
        state = as_stored(state, state_ptr)
        if HAS_TARGETS:
            _hold_at_target(state_ptr, target_ptr, first + time, state, entry, column, size, dim, head, heads)
    if not HAS_TARGETS:
        hold_tile(held_ptr, state, entry, column, size * tl.minimum(length, 1), dim)


@triton.jit
def units_kernel(
    hidden_ptr,
    input_ptr,
    decay_ptr,
    output_ptr,
    state_ptr,
    rate_ptr,
    input_bias_ptr,
    decay_bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    target_ptr,
    hidden_stride,
    input_stride,
    decay_stride,
    channels,
    HAS_TARGETS: tl.constexpr,
    TILE_C: tl.constexpr,
):
    """One program per sequence and tile of channels."""
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    own = channel < channels
    held_ptr = state_ptr + slot * channels + channel
    state = tl.load(held_ptr, mask=channel < channels * is_known, other=0.0).to(tl.float32)
    rate = tl.load(rate_ptr + channel, mask=own, other=0.0)
    input_bias = tl.load(input_bias_ptr + channel, mask=own, other=0.0)
    decay_bias = tl.load(decay_bias_ptr + channel, mask=own, other=0.0)
    token = _first_of(first, length)
    next_hidden = _of_token(hidden_ptr, token, hidden_stride, channel, own)
    next_opened = _of_token(input_ptr, token, input_stride, channel, own)
    next_fading = _of_token(decay_ptr, token, decay_stride, channel, own)
    for time in range(length):
        hidden, opened = next_hidden.to(tl.float32), next_opened.to(tl.float32)
        fading = next_fading.to(tl.float32)
        token = _next_of(first, time, length)
        next_hidden = _of_token(hidden_ptr, token, hidden_stride, channel, own)
        next_opened = _of_token(input_ptr, token, input_stride, channel, own)
        next_fading = _of_token(decay_ptr, token, decay_stride, channel, own)
        decay = tl.exp(rate * tl.sigmoid(fading + decay_bias))
        share = tl.where(is_known + time == 0, 1.0, tl.sqrt(1.0 - decay * decay))
        state = state * decay + hidden * tl.sigmoid(opened + input_bias) * share
        tl.store(output_ptr + (first + time) * channels + channel, state, mask=own)
        state = as_stored(state, state_ptr)
        if HAS_TARGETS:
            target = tl.load(target_ptr + first + time)
            kept_ptr = state_ptr + tl.maximum(target, 0) * channels + channel
            tl.store(kept_ptr, state, mask=channel < channels * (target >= 0).to(tl.int32))
    if not HAS_TARGETS:
        tl.store(held_ptr, state, mask=channel < channels * tl.minimum(length, 1))


@triton.jit(do_not_specialize=["tokens"])
def gated_norm_kernel(
    hidden_ptr,
    gate_ptr,
    output_ptr,
    weight_ptr,
    tokens,
    hidden_stride,
    gate_stride,
    size,
    epsilon,
    GROUPS: tl.constexpr,
    GATES_FIRST: tl.constexpr,
    IS_SILU: tl.constexpr,
    TILE_T: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One program per tile of tokens and group. Groups that lie side by side have programs that do, too."""
    await_inputs()
    token = (tl.program_id(0) // GROUPS).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)[:, None]
    group = tl.program_id(0) % GROUPS
    column = tl.arange(0, SIZE)[None, :]
    own = (column < size) & (token < tokens)
    column += group * size
    hidden = tl.load(hidden_ptr + token * hidden_stride + column, mask=own, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + column, mask=own, other=0.0).to(tl.float32)
    open_by = tl.sigmoid(gate) * gate if IS_SILU else tl.sigmoid(gate)
    if GATES_FIRST:
        hidden *= open_by
    hidden *= tl.rsqrt(tl.sum(hidden * hidden, 1) / size + epsilon)[:, None]
    hidden *= tl.load(weight_ptr + column, mask=column < (group + 1) * size, other=0.0).to(tl.float32)
    if not GATES_FIRST:
        hidden *= open_by
    tl.store(output_ptr + token * size * GROUPS + column, hidden, mask=own)


def norm_tile(size: int) -> int:
    """Tokens of a program that norms groups of a size: the same for any batch, which makes for equal results."""
    return max(1, _NORMED // triton.next_power_of_2(size))


def shares(lengths: Sequence[int], tile: int, others: int) -> int:
    """How many programs share the tiles of a sequence's tokens.

    Args:
        lengths: numbers of tokens of all sequences. The longest could have a program for each tile, but the others
            would have as many, most of them with nothing to do.
        tile: tokens of a tile.
        others: number of programs of each sequence if there is one share.
    """
    most = max(_FEWEST_SHARES, triton.cdiv(_PROGRAMS, len(lengths) * others))
    return max(1, min(triton.cdiv(max(lengths), tile), most))


def columns(size: int, dim: int) -> int:
    """How many of `dim` columns a program has, if each column's state has `size` entries."""
    return min(triton.next_power_of_2(dim), _COLUMNS, max(1, _NUMBERS // triton.next_power_of_2(size)))
