"""Short convolutions of recurrent layers.

They need only the last few inputs, so the tiles of a sequence's tokens are computed in parallel, with the same
arithmetic for any number of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs
from engine_svc.kernels.recurrence import as_stored, sequence_of

TILE_TOKENS = 16
TILE_CHANNELS = 64


@triton.jit
def _convolved_input(input_ptr, state_ptr, token, channel, stride, channels, wanted, GATED: tl.constexpr):
    """The filters' inputs of tokens, gated if GATED, rounded to the state's type."""
    where = input_ptr + token * stride + channel
    value = tl.load(where, mask=wanted, other=0.0).to(tl.float32)
    if GATED:
        value *= tl.load(where + 2 * channels, mask=wanted, other=0.0).to(tl.float32)
    return as_stored(value, state_ptr)


@triton.jit
def _keep_inputs(
    input_ptr,
    state_ptr,
    held_ptr,
    kept_ptr,
    first,
    end,
    channel,
    stride,
    channels,
    is_known,
    is_wanted,
    TAPS: tl.constexpr,
    GATED: tl.constexpr,
):
    """Stores the last inputs before token `end` of a sequence at `kept_ptr`, which may be where the old ones are."""
    before: tl.constexpr = TAPS - 1
    for kept in tl.static_range(before):
        seen = end - before + kept
        is_old = tl.minimum(tl.maximum(-seen, 0), 1)
        was_held = channel < channels * is_known * is_old * is_wanted
        is_new = channel < channels * (1 - is_old) * is_wanted
        old = tl.load(held_ptr + (seen + before) * channels + channel, mask=was_held, other=0.0).to(tl.float32)
        new = _convolved_input(input_ptr, state_ptr, first + seen, channel, stride, channels, is_new, GATED)
        tl.store(kept_ptr + kept * channels + channel, old + new, mask=channel < channels * is_wanted)


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
    target_ptr,
    stride,
    channels,
    TAPS: tl.constexpr,
    TARGETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATES: tl.constexpr,
    GATED: tl.constexpr,
    TILE_T: tl.constexpr,
    TILE_C: tl.constexpr,
):
    """One program per sequence, tile of channels, and share of the sequence's tiles of tokens.

    TARGETS is 0, or how many of a sequence's last tokens may have a target for the state after them. Only the first
    tile of tokens reads the old state, so its program can store the new one.
    """
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    own = channel < channels
    before: tl.constexpr = TAPS - 1
    tl.static_assert(before <= TILE_T)
    held_ptr = state_ptr + slot * before * channels
    for begin in range(tl.program_id(2) * TILE_T, length, tl.num_programs(2) * TILE_T):
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
    if tl.program_id(2) > 0:
        return
    tl.debug_barrier()  # all reads of the old state are done
    end = length
    if TARGETS:
        end = 0  # the tokens after which the old state is overwritten, when those after others have been stored
        for time in range(tl.maximum(length - TARGETS, 0), length):
            target = tl.load(target_ptr + first + time)
            end = tl.where(target == slot, time + 1, end)
            _keep_inputs(
                input_ptr, state_ptr, held_ptr, state_ptr + tl.maximum(target, 0) * before * channels, first, time + 1,
                channel, stride, channels, is_known, ((target >= 0) & (target != slot)).to(tl.int32), TAPS, GATED,
            )  # fmt: skip
    _keep_inputs(
        input_ptr, state_ptr, held_ptr, held_ptr, first, end, channel, stride, channels, is_known, tl.minimum(end, 1),
        TAPS, GATED,
    )  # fmt: skip
