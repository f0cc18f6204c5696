"""Chooses each token's experts from the scores of all experts, in one kernel.

The best expert is found as the greatest of integer keys: the score's bits, mapped so that they sort like the scores,
followed by the expert's place. So there is always exactly one best, also among NaNs; of equal scores, the first wins.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

SCORINGS = {"softmax": 0, "sigmoid": 1, "sparsemixer": 2, "sqrtsoftplus": 3, "sigmoid, biased logits": 4}
_LEAST = tl.constexpr(-(2**31))  # below all keys: experts absent or taken; one more: those that may not be chosen


@triton.jit
def _ordered(values):
    """int32 keys in the order of the values, from _LEAST + 2 on. NaN is the greatest; with a sign bit, the least."""
    found = values.to(tl.int32, bitcast=True)
    found = found ^ ((found >> 31) & 0x7FFFFFFF)
    return tl.maximum(found, _LEAST + 2)


@triton.jit
def _with_places(keys, places):
    """int64 keys with places: of equal keys, the one at the first place is the greatest."""
    return (keys.to(tl.int64) << 32) | (0x7FFFFFFF - places).to(tl.int64)


@triton.jit
def _place_of(found):
    return 0x7FFFFFFF - (found & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _choose_kernel(
    logits_ptr, bias_ptr, factors_ptr, present_ptr, weight_ptr, id_ptr, scale, near, SCORING: tl.constexpr,
    BIAS: tl.constexpr, FACTORS: tl.constexpr, PRESENT: tl.constexpr, RENORMALIZE: tl.constexpr,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, SIZE_PADDED: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr, CHOSEN: tl.constexpr, CHOSEN_PADDED: tl.constexpr,
):  # fmt: skip
    """One program per token, with a row for each group of experts.

    If any logit is +inf or NaN, all weights of the token are NaN.
    """
    await_inputs()
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_PADDED)
    within = tl.arange(0, SIZE_PADDED)
    present = (group < GROUPS)[:, None] & (within < EXPERTS // GROUPS)[None, :]
    expert = group[:, None] * (EXPERTS // GROUPS) + within[None, :]
    given = tl.load(logits_ptr + token * EXPERTS + expert, mask=present, other=float("-inf"))
    is_number = given < float("inf")
    logits = tl.where(is_number, tl.maximum(given, -3.0e38), 0.0)
    scores = logits
    if SCORING == 0:
        scores = tl.exp(logits - tl.max(tl.max(logits, 1), 0))
        scores = scores / tl.sum(tl.sum(scores, 1), 0)
    if (SCORING == 1) | (SCORING == 4):
        small = tl.exp(-tl.abs(logits))
        scores = tl.where(logits >= 0.0, 1.0, small) / (1.0 + small)
    if SCORING == 3:
        # log(1 + x) for a small x, of which 1 + x keeps few digits (Goldberg 1991)
        small = tl.exp(-tl.abs(logits))
        above = 1.0 + small
        rest = tl.where(above == 1.0, small, tl.log(above) * small / tl.where(above == 1.0, 1.0, above - 1.0))
        scores = tl.sqrt(tl.maximum(logits, 0.0) + rest)
    ranked = given  # scores grow with the logits, but differ less
    if BIAS:
        ranked = (given if SCORING == 4 else scores) + tl.load(bias_ptr + expert, mask=present, other=0.0)
    keys = tl.where(present, _ordered(ranked), _LEAST)
    if GROUPS > 1:
        best = tl.max(_with_places(keys, expert), 1)[:, None]
        is_best = expert == _place_of(best)
        worth = tl.sum(tl.where(is_best, ranked, 0.0), 1)
        if BIAS:
            best = tl.max(_with_places(tl.where(is_best, _LEAST, keys), expert), 1)[:, None]
            worth += tl.sum(tl.where(present & (expert == _place_of(best)), ranked, 0.0), 1)
        worths = _with_places(tl.where(group < GROUPS, _ordered(worth), _LEAST), group)
        chosen = group < 0
        for _ in range(CHOSEN_GROUPS):
            is_chosen = worths == tl.max(worths, 0)
            chosen = chosen | is_chosen
            worths = tl.where(is_chosen, _with_places(tl.full([GROUPS_PADDED], _LEAST, tl.int32), group), worths)
        keys = tl.where(present & (chosen[:, None] == 0), _LEAST + 1, keys)
    choice = tl.arange(0, CHOSEN_PADDED)
    ids = tl.zeros([CHOSEN_PADDED], tl.int32)
    weights = tl.zeros([CHOSEN_PADDED], tl.float32)
    for number in range(CHOSEN):
        best_id = _place_of(tl.max(tl.max(_with_places(keys, expert), 1), 0))
        is_best = present & (expert == best_id)
        weight = tl.sum(tl.sum(tl.where(is_best, scores, 0.0), 1), 0)
        if SCORING == 2:
            is_near = (keys > _LEAST) & (weight - logits <= near * tl.maximum(tl.abs(logits), weight))
            weight = 1.0 / tl.sum(tl.sum(tl.where(is_near, tl.exp(tl.where(is_near, logits - weight, 0.0)), 0.0), 1), 0)
        ids = tl.where(choice == number, best_id, ids)
        weights = tl.where(choice == number, weight, weights)
        keys = tl.where(is_best, _LEAST, keys)
    if RENORMALIZE:
        weights = weights / tl.maximum(tl.sum(weights, 0), 1.0e-30)
    if FACTORS:
        weights *= tl.load(factors_ptr + ids)
    overflowed = tl.sum(tl.sum(tl.where(is_number, 0, 1), 1), 0) > 0
    weights = tl.where(overflowed, float("nan"), weights)
    if PRESENT:
        ids = tl.where(token < tl.load(present_ptr), ids, -1)
    place = token * CHOSEN + choice
    tl.store(weight_ptr + place, weights * scale, mask=choice < CHOSEN)
    tl.store(id_ptr + place, ids.to(tl.int64), mask=choice < CHOSEN)


def choose_experts(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    scoring: str,
    chosen: int,
    groups: tuple[int, int],
    scale: float,
    near: float,
    *,
    renormalize: bool,
    present: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    into: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See Ops.choose_experts and Routing.

    Args:
        logits: float32 [tokens, experts]
        groups: the number of groups of experts, and how many of them are chosen.
    """
    tokens, experts = logits.shape
    weights = logits.new_empty((tokens, chosen))
    ids = logits.new_empty((tokens, chosen), dtype=torch.int64) if into is None else into
    _choose_kernel[(tokens,)](
        logits.contiguous(), bias, factors, present, weights, ids, scale, near, SCORING=SCORINGS[scoring],
        BIAS=bias is not None, FACTORS=factors is not None, PRESENT=present is not None, RENORMALIZE=renormalize,
        EXPERTS=experts, GROUPS=groups[0], GROUPS_PADDED=triton.next_power_of_2(groups[0]),
        SIZE_PADDED=triton.next_power_of_2(experts // groups[0]), CHOSEN_GROUPS=groups[1], CHOSEN=chosen,
        CHOSEN_PADDED=triton.next_power_of_2(chosen),
        num_warps=1 if experts <= 256 else 4,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return weights, ids
