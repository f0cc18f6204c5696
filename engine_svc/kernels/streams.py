"""Weights by which the streams of hyper-connections are mixed (Xie et al. 2026)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early


@triton.jit
def _weigh_kernel(score_ptr, iterations, epsilon, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """One program per token. Streams that only pad have a weight of zero."""
    await_inputs()
    scores = score_ptr + tl.program_id(0).to(tl.int64) * (COUNT * (2 + COUNT))
    stream = tl.arange(0, PADDED)
    present = stream < COUNT
    before = tl.load(scores + stream, mask=present, other=0.0)
    tl.store(scores + stream, tl.sigmoid(before) + epsilon, mask=present)
    added = tl.load(scores + COUNT + stream, mask=present, other=0.0)
    tl.store(scores + COUNT + stream, 2.0 * tl.sigmoid(added), mask=present)
    both = present[:, None] & present[None, :]
    place = scores + 2 * COUNT + stream[:, None] * COUNT + stream[None, :]
    # Rows that only pad are 0 and not minus infinity, whose softmax would be NaN.
    kept = tl.load(place, mask=both, other=float("-inf"))
    kept = tl.where(present[:, None], kept, 0.0)
    kept = tl.exp(kept - tl.max(kept, 1)[:, None])
    kept = tl.where(both, kept / tl.sum(kept, 1)[:, None] + epsilon, 0.0)
    kept = kept / (tl.sum(kept, 0) + epsilon)[None, :]
    for _ in range(iterations - 1):
        kept = kept / (tl.sum(kept, 1) + epsilon)[:, None]
        kept = kept / (tl.sum(kept, 0) + epsilon)[None, :]
    tl.store(place, kept, mask=both)


def stream_weights(scores: torch.Tensor, count: int, iterations: int, epsilon: float) -> torch.Tensor:
    """See Ops.stream_weights."""
    _weigh_kernel[(len(scores),)](
        scores, iterations, epsilon, COUNT=count, PADDED=triton.next_power_of_2(count), num_warps=1,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return scores
