"""Recurrent layers: each program goes through the tokens of one sequence, one after the other, with its part of the
state in registers.

So a token's arithmetic is the same alone and among many, however a prompt is cut, and whatever the batch has beside it.
States of fewer than 32 bits are rounded after each token.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE_TOKENS = 16
TILE_CHANNELS = 64
_NORM_EPSILON = tl.constexpr(1e-6)  # of queries and keys of the delta rule


@triton.jit
def _softplus(value):
    """log(1 + exp(value)), as exactly where little is added to 1."""
    small = tl.exp(-tl.abs(value))
    whole = 1.0 + small
    added = tl.where(whole == 1.0, small, tl.log(whole) * (small / (whole - 1.0)))
    return tl.maximum(value, 0.0) + added


@triton.jit
def _sequence(start_ptr, slot_ptr, fresh_ptr):
    """Of the first axis of programs: its first token, its number of them, its slot; and, 0 or 1, whether its slot holds
    anything of it."""
    index = tl.program_id(0)
    first = tl.load(start_ptr + index).to(tl.int64)
    length = (tl.load(start_ptr + index + 1).to(tl.int64) - first).to(tl.int32)
    return first, length, tl.load(slot_ptr + index).to(tl.int64), 1 - tl.load(fresh_ptr + index).to(tl.int32)


@triton.jit
def _as_stored(value, state_ptr):
    """In float32, what is left of it in the type of a state."""
    return value.to(state_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _held(held_ptr, row, column, rows, columns):
    """In float32, a tile of a matrix; 0 behind its last row and column."""
    where = held_ptr + row[:, None] * columns + column[None, :]
    return tl.load(where, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _hold(held_ptr, values, row, column, rows, columns):
    """Puts it back."""
    where = held_ptr + row[:, None] * columns + column[None, :]
    tl.store(where, values, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _convolved_input(input_ptr, state_ptr, token, channel, stride, channels, wanted, GATED: tl.constexpr):
    """What filters see of tokens, as far as the state's type holds it."""
    where = input_ptr + token * stride + channel
    value = tl.load(where, mask=wanted, other=0.0).to(tl.float32)
    if GATED:
        value *= tl.load(where + 2 * channels, mask=wanted, other=0.0).to(tl.float32)
    return _as_stored(value, state_ptr)


@triton.jit
def convolve_kernel(
    input_ptr,
    output_ptr,
    state_ptr,
    weight_ptr,
    bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    stride,
    channels,
    TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATES: tl.constexpr,
    GATED: tl.constexpr,
    TILE_T: tl.constexpr,
    TILE_C: tl.constexpr,
):
    """One program per sequence and tile of channels."""
    first, length, slot, is_known = _sequence(start_ptr, slot_ptr, fresh_ptr)
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    own = channel < channels
    before: tl.constexpr = TAPS - 1
    held_ptr = state_ptr + slot * before * channels
    for begin in range(0, length, TILE_T):
        time = begin + tl.arange(0, TILE_T)
        inside = (time < length)[:, None] & own[None, :]
        total = tl.zeros([TILE_T, TILE_C], tl.float32)
        if HAS_BIAS:
            total += tl.load(bias_ptr + channel, mask=own, other=0.0)[None, :]
        for tap in tl.static_range(TAPS):
            seen = time - before + tap
            held = tl.load(
                held_ptr + (seen + before)[:, None] * channels + channel[None, :],
                mask=inside & (seen < 0)[:, None] & (channel < channels * is_known)[None, :],
                other=0.0,
            ).to(tl.float32)
            new = _convolved_input(
                input_ptr, state_ptr, (first + seen)[:, None], channel[None, :], stride, channels,
                inside & (seen >= 0)[:, None], GATED,
            )  # fmt: skip
            weight = tl.load(weight_ptr + tap * channels + channel, mask=own, other=0.0)
            total += (held + new) * weight[None, :]
        if ACTIVATES:
            total *= tl.sigmoid(total)
        if GATED:
            total *= tl.load(
                input_ptr + (first + time)[:, None] * stride + channels + channel[None, :], mask=inside, other=0.0
            ).to(tl.float32)
        tl.store(output_ptr + (first + time)[:, None] * channels + channel[None, :], total, mask=inside)
    tl.debug_barrier()  # what was held is read by now
    for kept in tl.static_range(before):
        seen = length - before + kept
        is_old = tl.minimum(tl.maximum(-seen, 0), 1)
        was_held = channel < channels * is_known * is_old
        old = tl.load(held_ptr + (seen + before) * channels + channel, mask=was_held, other=0.0).to(tl.float32)
        new = _convolved_input(
            input_ptr, state_ptr, first + seen, channel, stride, channels, channel < channels * (1 - is_old), GATED
        )
        tl.store(held_ptr + kept * channels + channel, old + new, mask=channel < channels * tl.minimum(length, 1))


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
    hidden_stride,
    step_stride,
    write_stride,
    read_stride,
    gate_stride,
    channels,
    size,
    SIZE: tl.constexpr,
    TILE_C: tl.constexpr,
):
    """One program per sequence and tile of channels."""
    first, length, slot, is_known = _sequence(start_ptr, slot_ptr, fresh_ptr)
    channel, entry = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C), tl.arange(0, SIZE)
    own, kept = channel < channels, entry < size
    held_ptr = state_ptr + slot * size * channels
    state = _held(held_ptr, entry, channel, size * is_known, channels)
    rates = _held(rate_ptr, entry, channel, size, channels)
    skip = tl.load(skip_ptr + channel, mask=own, other=0.0)
    for time in range(length):
        token = first + time
        hidden = tl.load(hidden_ptr + token * hidden_stride + channel, mask=own, other=0.0).to(tl.float32)
        step = _softplus(tl.load(step_ptr + token * step_stride + channel, mask=own, other=0.0).to(tl.float32))
        write = tl.load(write_ptr + token * write_stride + entry, mask=kept, other=0.0).to(tl.float32)
        read = tl.load(read_ptr + token * read_stride + entry, mask=kept, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + token * gate_stride + channel, mask=own, other=0.0).to(tl.float32)
        state = state * tl.exp(step[None, :] * rates) + (step * hidden)[None, :] * write[:, None]
        output = tl.sum(state * read[:, None], 0) + hidden * skip
        tl.store(output_ptr + token * channels + channel, output * gate * tl.sigmoid(gate), mask=own)
        state = _as_stored(state, state_ptr)
    _hold(held_ptr, state, entry, channel, size * tl.minimum(length, 1), channels)


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
    HAS_BIAS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """One program per sequence, head, and tile of its numbers."""
    first, length, slot, is_known = _sequence(start_ptr, slot_ptr, fresh_ptr)
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept = column < dim, entry < size
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = _held(held_ptr, entry, column, size * is_known, dim)
    rate, skip = tl.load(rate_ptr + head), tl.load(skip_ptr + head)
    group = (head // sharing) * size + entry
    for time in range(length):
        token = first + time
        hidden = tl.load(hidden_ptr + token * hidden_stride + head * dim + column, mask=own, other=0.0).to(tl.float32)
        step = tl.load(step_ptr + token * step_stride + head).to(tl.float32)
        if HAS_BIAS:
            step += tl.load(bias_ptr + head)
        step = tl.minimum(tl.maximum(_softplus(step), least), most)
        write = tl.load(write_ptr + token * write_stride + group, mask=kept, other=0.0).to(tl.float32)
        read = tl.load(read_ptr + token * read_stride + group, mask=kept, other=0.0).to(tl.float32)
        state = state * tl.exp(step * rate) + write[:, None] * (hidden * step)[None, :]
        output = tl.sum(state * read[:, None], 0) + hidden * skip
        tl.store(output_ptr + (token * heads + head) * dim + column, output, mask=own)
        state = _as_stored(state, state_ptr)
    _hold(held_ptr, state, entry, column, size * tl.minimum(length, 1), dim)


@triton.jit
def _unit(vector):
    return vector * tl.rsqrt(tl.sum(vector * vector, 0) + _NORM_EPSILON)


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
    BY_KEY: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """One program per sequence, value head, and tile of its numbers."""
    first, length, slot, is_known = _sequence(start_ptr, slot_ptr, fresh_ptr)
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept = column < dim, entry < size
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = _held(held_ptr, entry, column, size * is_known, dim)
    rate = tl.load(rate_ptr + head)
    shared = (head // sharing) * size + entry
    for time in range(length):
        token = first + time
        query = _unit(tl.load(query_ptr + token * query_stride + shared, mask=kept, other=0.0).to(tl.float32)) * scale
        key = _unit(tl.load(key_ptr + token * key_stride + shared, mask=kept, other=0.0).to(tl.float32))
        value = tl.load(value_ptr + token * value_stride + head * dim + column, mask=own, other=0.0).to(tl.float32)
        strength = tl.load(strength_ptr + token * strength_stride + head).to(tl.float32)
        if BY_KEY:
            steps = tl.load(step_ptr + token * step_stride + head * size + entry, mask=kept, other=0.0).to(tl.float32)
            steps += tl.load(bias_ptr + head * size + entry, mask=kept, other=0.0)
            state *= tl.exp(rate * _softplus(steps))[:, None]
        else:
            step = tl.load(step_ptr + token * step_stride + head).to(tl.float32) + tl.load(bias_ptr + head)
            state *= tl.exp(rate * _softplus(step))
        news = (value - tl.sum(state * key[:, None], 0)) * (tl.sigmoid(strength) * strongest)
        state += key[:, None] * news[None, :]
        output = tl.sum(state * query[:, None], 0)
        tl.store(output_ptr + (token * heads + head) * dim + column, output, mask=own)
        state = _as_stored(state, state_ptr)
    _hold(held_ptr, state, entry, column, size * tl.minimum(length, 1), dim)


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
    hidden_stride,
    input_stride,
    decay_stride,
    channels,
    TILE_C: tl.constexpr,
):
    """One program per sequence and tile of channels."""
    first, length, slot, is_known = _sequence(start_ptr, slot_ptr, fresh_ptr)
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    own = channel < channels
    held_ptr = state_ptr + slot * channels + channel
    state = tl.load(held_ptr, mask=channel < channels * is_known, other=0.0).to(tl.float32)
    rate = tl.load(rate_ptr + channel, mask=own, other=0.0)
    input_bias = tl.load(input_bias_ptr + channel, mask=own, other=0.0)
    decay_bias = tl.load(decay_bias_ptr + channel, mask=own, other=0.0)
    for time in range(length):
        token = first + time
        hidden = tl.load(hidden_ptr + token * hidden_stride + channel, mask=own, other=0.0).to(tl.float32)
        opened = tl.load(input_ptr + token * input_stride + channel, mask=own, other=0.0).to(tl.float32)
        fading = tl.load(decay_ptr + token * decay_stride + channel, mask=own, other=0.0).to(tl.float32)
        decay = tl.exp(rate * tl.sigmoid(fading + decay_bias))
        share = tl.where(is_known + time == 0, 1.0, tl.sqrt(1.0 - decay * decay))
        state = state * decay + hidden * tl.sigmoid(opened + input_bias) * share
        tl.store(output_ptr + token * channels + channel, state, mask=own)
        state = _as_stored(state, state_ptr)
    tl.store(held_ptr, state, mask=channel < channels * tl.minimum(length, 1))


@triton.jit
def gated_norm_kernel(
    hidden_ptr,
    gate_ptr,
    output_ptr,
    weight_ptr,
    hidden_stride,
    gate_stride,
    size,
    epsilon,
    GROUPS: tl.constexpr,
    GATES_FIRST: tl.constexpr,
    IS_SILU: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One program per token and group."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, SIZE)
    own = column < size
    column += group * size
    hidden = tl.load(hidden_ptr + token * hidden_stride + column, mask=own, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + column, mask=own, other=0.0).to(tl.float32)
    open_by = tl.sigmoid(gate) * gate if IS_SILU else tl.sigmoid(gate)
    if GATES_FIRST:
        hidden *= open_by
    hidden *= tl.rsqrt(tl.sum(hidden * hidden, 0) / size + epsilon)
    hidden *= tl.load(weight_ptr + column, mask=own, other=0.0).to(tl.float32)
    if not GATES_FIRST:
        hidden *= open_by
    tl.store(output_ptr + token * size * GROUPS + column, hidden, mask=own)


def columns(dim: int) -> int:
    """Of a head, those that a program has: with 128 entries of the state each, 32 registers of each thread."""
    return min(triton.next_power_of_2(dim), 32)
