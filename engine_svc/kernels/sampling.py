"""Drawing a token from what min-p, top-k and top-p leave, without sorting and without asking the device anything.

The least likely token that is kept is found by descending the bits of its weight, three at a time: how many tokens, or
how much of the mass, have these bits or greater ones. Positive floating-point numbers are in the order of their bits.
Which of those comes is a race, as in engine_svc/sampling/truncation.py, with the numbers of sampling/noise.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 2048


@triton.jit
def _weights(logits_ptr, begin, vocab_size, greatest, temperature, min_p, TILE: tl.constexpr):
    """exp((logit - greatest) / temperature) of a tile of tokens, so 1 for the likeliest; 0 below min_p."""
    tokens = begin + tl.arange(0, TILE)
    logits = tl.load(logits_ptr + tokens, mask=tokens < vocab_size, other=float("-inf"))
    weights = tl.exp((logits - greatest) / temperature)
    return tl.where(weights >= min_p, weights, 0.0)


@triton.jit
def _descend(
    logits_ptr, vocab_size, greatest, temperature, min_p, limit, BY_MASS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The weight at which tokens, the likeliest first, reach `limit` of their number or mass.

    Returns (the weight's bits, number of the tokens that weigh more, their mass).
    """
    bins = tl.arange(0, 8)  # of the next three bits, the greatest first
    prefix = 0
    count_above = 0.0
    mass_above = 0.0
    for level in range(10):
        shift = 27 - 3 * level
        counts = tl.zeros([8], tl.float32)
        masses = tl.zeros([8], tl.float32)
        for begin in range(0, vocab_size, TILE):
            weights = _weights(logits_ptr, begin, vocab_size, greatest, temperature, min_p, TILE)
            bits = weights.to(tl.int32, bitcast=True) >> shift
            present = (begin + tl.arange(0, TILE) < vocab_size) & ((bits >> 3) == prefix)
            chosen = present[:, None] & ((7 - (bits & 7))[:, None] == bins[None, :])
            counts += tl.sum(tl.where(chosen, 1.0, 0.0), axis=0)
            masses += tl.sum(tl.where(chosen, weights[:, None], 0.0), axis=0)
        reached = mass_above + tl.cumsum(masses, 0) if BY_MASS else count_above + tl.cumsum(counts, 0)
        filled = masses > 0 if BY_MASS else counts > 0
        first = tl.min(tl.where(filled & (reached >= limit), bins, 8), 0)
        # Sums in another order may miss the limit by a rounding: then it is the last that there is.
        first = tl.where(first == 8, tl.max(tl.where(filled, bins, 0), 0), first)
        count_above += tl.sum(tl.where(bins < first, counts, 0.0), 0)
        mass_above += tl.sum(tl.where(bins < first, masses, 0.0), 0)
        prefix = prefix * 8 + 7 - first
    return prefix, count_above, mass_above


@triton.jit
def _exponentials(tokens, first_key, second_key):
    """An exponentially distributed number of each token."""
    words = tokens.to(tl.uint32) + first_key
    words = (words ^ (words >> 17)) * 0xED5AD4BB
    words = ((words ^ (words >> 11)) + second_key) * 0xAC4C1B51
    words = (words ^ (words >> 15)) * 0x31848BAB
    words = words ^ (words >> 14)
    # Small numbers win, and a device's logarithm is least exact beside 1: there, the series of -log(1 - x).
    x = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    x = tl.minimum(x, 0.99999994)
    series = x * (1 + x * (0.5 + x * (0.33333334 + x * (0.25 + x * (0.2 + x * 0.16666667)))))
    return tl.where(x < 0.0625, series, -tl.log(1 - x))


@triton.jit
def _draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, keys_ptr, token_ids_ptr, logits_stride, vocab_size,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * logits_stride
    temperature = tl.load(temperature_ptr + row)
    min_p = 0.0
    if min_p_ptr is not None:
        min_p = tl.load(min_p_ptr + row)

    highest = tl.full([TILE], float("-inf"), tl.float32)
    for begin in range(0, vocab_size, TILE):
        tokens = begin + tl.arange(0, TILE)
        highest = tl.maximum(highest, tl.load(logits_ptr + tokens, mask=tokens < vocab_size, other=float("-inf")))
    greatest = tl.max(highest, 0)
    kept = 0.0  # mass, for top-p
    if top_p_ptr is not None:
        sums = tl.zeros([TILE], tl.float32)
        for begin in range(0, vocab_size, TILE):
            sums += _weights(logits_ptr, begin, vocab_size, greatest, temperature, min_p, TILE)
        kept = tl.sum(sums, 0)

    # Kept are the tokens whose weight has greater bits than `least`, and the first `ties` of those with the same.
    least = 0
    ties = vocab_size * 1.0
    if top_k_ptr is not None:
        top_k = tl.load(top_k_ptr + row).to(tl.float32)
        if (top_k > 0) & (top_k < vocab_size):
            least, count, mass = _descend(logits_ptr, vocab_size, greatest, temperature, min_p, top_k, False, TILE)
            ties = top_k - count
            kept = mass + ties * least.to(tl.float32, bitcast=True)
    if top_p_ptr is not None:
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1:
            limit = top_p * kept
            bits, count, mass = _descend(logits_ptr, vocab_size, greatest, temperature, min_p, limit, True, TILE)
            weight = bits.to(tl.float32, bitcast=True)
            needed = tl.maximum(tl.ceil((limit - mass) / weight), 1.0)
            ties = tl.where(bits == least, tl.minimum(ties, needed), needed)
            least = bits

    first_key = tl.load(keys_ptr + 2 * row).to(tl.uint32)
    second_key = tl.load(keys_ptr + 2 * row + 1).to(tl.uint32)
    same_before = 0.0
    best = tl.full([TILE], -1.0, tl.float32)
    found = tl.zeros([TILE], tl.int32)
    for begin in range(0, vocab_size, TILE):
        tokens = begin + tl.arange(0, TILE)
        weights = _weights(logits_ptr, begin, vocab_size, greatest, temperature, min_p, TILE)
        bits = weights.to(tl.int32, bitcast=True)
        same = tl.where(bits == least, 1.0, 0.0)
        rank = same_before + tl.cumsum(same, 0)
        is_kept = (bits > least) | ((bits == least) & (rank <= ties))
        scores = tl.where(is_kept & (weights > 0), weights / _exponentials(tokens, first_key, second_key), -1.0)
        found = tl.where(scores > best, tokens, found)
        best = tl.maximum(best, scores)
        same_before += tl.sum(same, 0)
    is_best = (best == tl.max(best, 0)) & (best > 0)
    found = tl.min(tl.where(is_best, found, vocab_size), 0)
    tl.store(token_ids_ptr + row, tl.where(found < vocab_size, found, 0).to(tl.int64))


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    keys: torch.Tensor,
) -> torch.Tensor:
    """Draws one token per row.

    Of tokens that are equally likely, those with the smallest ids are kept.

    Args:
        logits: float32 [rows, vocabulary], rows contiguous.
        temperature: float32 [rows], above 0
        top_k: int64 [rows], 0 keeps all; top_p, min_p: float32 [rows], 1 and 0 keep all; None where no row uses it.
        keys: int64 [rows, 2], of the rows' noise, contiguous.

    Returns:
        int64 [rows]; anything in the vocabulary where logits are not finite.
    """
    rows, vocab_size = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _draw_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, keys, token_ids, logits.stride(0), vocab_size,
        TILE=min(_TILE, triton.next_power_of_2(vocab_size)), num_warps=8,
    )  # fmt: skip
    return token_ids
