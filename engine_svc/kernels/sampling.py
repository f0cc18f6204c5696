"""Draws a token from those that min-p, top-k and top-p keep, without sorting and without synchronizing with the host.

The least likely token that is kept is found by descending through the bits of its weight, three at a time: each level
counts the tokens, or their mass, with these bits or greater ones. Positive floating-point numbers sort like their bits.
The kept tokens run a race, as in engine_svc/sampling/truncation.py, with the random numbers of sampling/noise.py.

A row's vocabulary is split into chunks, each with its own program. They count tokens by weight, in bins of powers of
two, and list the tokens that may be kept by these counts. One program per row then searches and draws only from the
listed tokens, mostly a few hundred. For a row that keeps all tokens, each chunk lists only the winner of its race.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

_TILE = 2048
_CHUNK_TILES = 4
_MOST = 8192  # tokens in a list; if more may be kept, the whole row is searched
_BINS = tl.constexpr(128)  # bin b has weights from 2^-b on; the last one has weights that are never drawn


@triton.jit
def _weights(logits_ptr, tokens, greatest, temperature, min_p):
    """exp((logit - greatest) / temperature) of tokens: 1 for the likeliest, 0 below min_p and for token -1."""
    logits = tl.load(logits_ptr + tokens, mask=tokens >= 0, other=float("-inf"))
    weights = tl.exp((logits - greatest) / temperature)
    return tl.where((weights >= min_p) & (tokens >= 0), weights, 0.0)


@triton.jit
def _bin(weights):
    return tl.minimum(tl.maximum(127 - (weights.to(tl.int32, bitcast=True) >> 23), 0), _BINS - 1)


@triton.jit
def _tokens(list_ptr, begin, count, is_listed, TILE: tl.constexpr):
    """A tile of a list, or of the whole vocabulary; -1 past its end."""
    place = begin + tl.arange(0, TILE)
    tokens = tl.where(place < count, place, -1)
    if is_listed:
        tokens = tl.load(list_ptr + place, mask=place < count, other=-1)
    return tokens


@triton.jit
def _descend(
    logits_ptr, list_ptr, count, is_listed, greatest, temperature, min_p, limit, BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Finds the weight at which the tokens, the likeliest first, reach `limit` in number or mass.

    Returns (the weight's bits, number of tokens with a greater weight, their mass).
    """
    bins = tl.arange(0, 8)  # values of the next three bits, the greatest first
    prefix = 0
    count_above = 0.0
    mass_above = 0.0
    for level in range(10):
        shift = 27 - 3 * level
        counts = tl.zeros([8], tl.float32)
        masses = tl.zeros([8], tl.float32)
        for begin in range(0, count, TILE):
            tokens = _tokens(list_ptr, begin, count, is_listed, TILE)
            weights = _weights(logits_ptr, tokens, greatest, temperature, min_p)
            bits = weights.to(tl.int32, bitcast=True) >> shift
            present = (tokens >= 0) & ((bits >> 3) == prefix)
            chosen = present[:, None] & ((7 - (bits & 7))[:, None] == bins[None, :])
            counts += tl.sum(tl.where(chosen, 1.0, 0.0), axis=0)
            masses += tl.sum(tl.where(chosen, weights[:, None], 0.0), axis=0)
        reached = mass_above + tl.cumsum(masses, 0) if BY_MASS else count_above + tl.cumsum(counts, 0)
        filled = masses > 0 if BY_MASS else counts > 0
        first = tl.min(tl.where(filled & (reached >= limit), bins, 8), 0)
        # Sums in another order may miss the limit by a rounding error: then take the last non-empty bin.
        first = tl.where(first == 8, tl.max(tl.where(filled, bins, 0), 0), first)
        count_above += tl.sum(tl.where(bins < first, counts, 0.0), 0)
        mass_above += tl.sum(tl.where(bins < first, masses, 0.0), 0)
        prefix = prefix * 8 + 7 - first
    return prefix, count_above, mass_above


@triton.jit
def _exponentials(tokens, first_key, second_key):
    """An exponentially distributed random number for each token."""
    words = tokens.to(tl.uint32) + first_key
    words = (words ^ (words >> 17)) * 0xED5AD4BB
    words = ((words ^ (words >> 11)) + second_key) * 0xAC4C1B51
    words = (words ^ (words >> 15)) * 0x31848BAB
    words = words ^ (words >> 14)
    # Small numbers win, and the device's logarithm is least exact near 1: there, use the series of -log(1 - x).
    x = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    x = tl.minimum(x, 0.99999994)
    series = x * (1 + x * (0.5 + x * (0.33333334 + x * (0.25 + x * (0.2 + x * 0.16666667)))))
    return tl.where(x < 0.0625, series, -tl.log(1 - x))


@triton.jit
def _winner(best, found, none):
    """The token with the greatest score, of several the one with the smallest id; `none` if no score is positive."""
    return tl.min(tl.where((best == tl.max(best, 0)) & (best > 0), found, none), 0)


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _count_kernel(
    logits_ptr, greatest_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, counts_ptr, masses_ptr, logits_stride,
    vocab_size, TILE: tl.constexpr, CHUNK_TILES: tl.constexpr,
):  # fmt: skip
    """One program per row and chunk: counts the chunk's tokens in each bin, and sums their weights."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    top_k = tl.load(top_k_ptr + row)
    if ((top_k <= 0) | (top_k >= vocab_size)) & (tl.load(top_p_ptr + row) >= 1):
        return
    logits_ptr += row * logits_stride
    greatest = tl.load(greatest_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    counts = tl.zeros([_BINS], tl.int32)
    masses = tl.zeros([TILE], tl.float32)
    first = chunk * CHUNK_TILES * TILE
    for begin in range(first, tl.minimum(first + CHUNK_TILES * TILE, vocab_size), TILE):
        tokens = _tokens(counts_ptr, begin, vocab_size, False, TILE)
        weights = _weights(logits_ptr, tokens, greatest, temperature, min_p)
        counts += tl.histogram(_bin(weights), _BINS)
        masses += weights
    place = row * tl.num_programs(1) + chunk
    tl.store(counts_ptr + place * _BINS + tl.arange(0, _BINS), counts)
    tl.store(masses_ptr + place, tl.sum(masses, 0))


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _list_kernel(
    logits_ptr, greatest_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, keys_ptr, counts_ptr, masses_ptr,
    list_ptr, size_ptr, mass_ptr, logits_stride, vocab_size, MOST: tl.constexpr, TILE: tl.constexpr,
    CHUNK_TILES: tl.constexpr,
):  # fmt: skip
    """One program per row and chunk: lists its tokens that may be kept after those of the chunks before.

    The first chunk writes the row's totals: the number of listed tokens, and the mass of all tokens.
    """
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    logits_ptr += row * logits_stride
    list_ptr += row * MOST
    greatest = tl.load(greatest_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    first = chunk * CHUNK_TILES * TILE
    end = tl.minimum(first + CHUNK_TILES * TILE, vocab_size)
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    if has_top_k | (top_p < 1):
        bins = tl.arange(0, _BINS)
        counts = tl.zeros([_BINS], tl.int32)
        before = tl.zeros([_BINS], tl.int32)
        mass = 0.0
        for other in range(chunks):
            some = tl.load(counts_ptr + (row * chunks + other) * _BINS + bins)
            counts += some
            before += tl.where(other < chunk, some, 0)
            mass += tl.load(masses_ptr + row * chunks + other)
        # Tokens past each bin weigh less than this in all, as a weight is less than twice the least weight of its bin.
        most = counts.to(tl.float32) * tl.exp2((1 - bins).to(tl.float32))
        left_out = tl.sum(most, 0) - tl.cumsum(most, 0)
        by_mass = left_out <= (1 - top_p) * mass
        is_enough = tl.where(has_top_k, tl.cumsum(counts, 0) >= top_k, by_mass)
        last = tl.minimum(tl.min(tl.where(is_enough, bins, _BINS), 0), _BINS - 2)
        size = tl.sum(tl.where(bins <= last, counts, 0), 0)
        if chunk == 0:
            tl.store(size_ptr + row, size)
            tl.store(mass_ptr + row, mass)
        if size <= MOST:
            place = tl.sum(tl.where(bins <= last, before, 0), 0)
            for begin in range(first, end, TILE):
                tokens = _tokens(list_ptr, begin, vocab_size, False, TILE)
                weights = _weights(logits_ptr, tokens, greatest, temperature, min_p)
                chosen = ((_bin(weights) <= last) & (tokens >= 0)).to(tl.int32)
                at = place + tl.cumsum(chosen, 0) - 1
                tl.store(list_ptr + at, tokens, mask=(chosen > 0) & (at < MOST))
                place += tl.sum(chosen, 0)
    else:
        first_key = tl.load(keys_ptr + 2 * row).to(tl.uint32)
        second_key = tl.load(keys_ptr + 2 * row + 1).to(tl.uint32)
        best = tl.full([TILE], -1.0, tl.float32)
        found = tl.full([TILE], -1, tl.int32)
        for begin in range(first, end, TILE):
            tokens = _tokens(list_ptr, begin, vocab_size, False, TILE)
            weights = _weights(logits_ptr, tokens, greatest, temperature, min_p)
            scores = tl.where(weights > 0, weights / _exponentials(tokens, first_key, second_key), -1.0)
            found = tl.where(scores > best, tokens, found)
            best = tl.maximum(best, scores)
        winner = _winner(best, found, vocab_size)
        tl.store(list_ptr + chunk, tl.where(winner < vocab_size, winner, -1))
        if chunk == 0:
            tl.store(size_ptr + row, chunks)


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _draw_kernel(
    logits_ptr, greatest_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, keys_ptr, list_ptr, size_ptr, mass_ptr,
    token_ids_ptr, logits_stride, vocab_size, MOST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    list_ptr += row * MOST
    greatest = tl.load(greatest_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    top_k = tl.load(top_k_ptr + row).to(tl.float32)
    top_p = tl.load(top_p_ptr + row)
    size = tl.load(size_ptr + row)
    is_listed = size <= MOST
    count = tl.where(is_listed, size, vocab_size)

    # Keeps tokens whose weight has greater bits than `least`, and the first `ties` of those with the same bits.
    least = 0
    ties = vocab_size * 1.0
    kept = tl.load(mass_ptr + row)  # for top-p
    if (top_k > 0) & (top_k < vocab_size):
        least, above, mass = _descend(
            logits_ptr, list_ptr, count, is_listed, greatest, temperature, min_p, top_k, False, TILE
        )
        ties = top_k - above
        kept = mass + ties * least.to(tl.float32, bitcast=True)
    if top_p < 1:
        limit = top_p * kept
        bits, above, mass = _descend(
            logits_ptr, list_ptr, count, is_listed, greatest, temperature, min_p, limit, True, TILE
        )
        weight = bits.to(tl.float32, bitcast=True)
        needed = tl.maximum(tl.ceil((limit - mass) / weight), 1.0)
        ties = tl.where(bits == least, tl.minimum(ties, needed), needed)
        least = bits

    first_key = tl.load(keys_ptr + 2 * row).to(tl.uint32)
    second_key = tl.load(keys_ptr + 2 * row + 1).to(tl.uint32)
    same_before = 0.0
    best = tl.full([TILE], -1.0, tl.float32)
    found = tl.zeros([TILE], tl.int32)
    for begin in range(0, count, TILE):
        tokens = _tokens(list_ptr, begin, count, is_listed, TILE)
        weights = _weights(logits_ptr, tokens, greatest, temperature, min_p)
        bits = weights.to(tl.int32, bitcast=True)
        same = tl.where((bits == least) & (tokens >= 0), 1.0, 0.0)
        rank = same_before + tl.cumsum(same, 0)
        is_kept = (bits > least) | ((bits == least) & (rank <= ties))
        scores = tl.where(is_kept & (weights > 0), weights / _exponentials(tokens, first_key, second_key), -1.0)
        found = tl.where(scores > best, tokens, found)
        best = tl.maximum(best, scores)
        same_before += tl.sum(same, 0)
    winner = _winner(best, found, vocab_size)
    tl.store(token_ids_ptr + row, tl.where(winner < vocab_size, winner, 0).to(tl.int64))


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    keys: torch.Tensor,
) -> torch.Tensor:
    """Draws one token per row.

    Of equally likely tokens, those with the smallest ids are kept.

    Args:
        logits: float32 [rows, vocabulary], rows contiguous.
        temperature: float32 [rows], above 0
        top_k: int32 or int64 [rows], 0 keeps all; top_p, min_p: float32 [rows], 1 and 0 keep all. None if no row
            uses it.
        keys: int64 [rows, 2], contiguous: the keys of the rows' random numbers.

    Returns:
        int64 [rows]; an arbitrary token of the vocabulary if a row's logits are not finite.
    """
    rows, vocab_size = logits.shape
    device, tile = logits.device, min(_TILE, triton.next_power_of_2(vocab_size))
    chunks = triton.cdiv(vocab_size, tile * _CHUNK_TILES)
    most = max(_MOST, triton.next_power_of_2(chunks))
    limits = (
        torch.zeros(rows, dtype=torch.int32, device=device) if top_k is None else top_k,
        torch.ones(rows, device=device) if top_p is None else top_p,
        torch.zeros(rows, device=device) if min_p is None else min_p,
    )
    counts = torch.empty((rows, chunks, _BINS.value), dtype=torch.int32, device=device)
    masses, mass = torch.empty((rows, chunks), device=device), torch.empty(rows, device=device)
    # -1 marks places that are not filled: by a rounding error, a token may be counted but not listed.
    listed = torch.full((rows, most), -1, dtype=torch.int32, device=device)
    sizes = torch.empty(rows, dtype=torch.int32, device=device)
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    given = logits, logits.amax(-1), temperature, *limits
    shape = logits.stride(0), vocab_size
    _count_kernel[(rows, chunks)](
        *given, counts, masses, *shape, TILE=tile, CHUNK_TILES=_CHUNK_TILES, num_warps=8, launch_pdl=begins_early(),
    )  # fmt: skip
    _list_kernel[(rows, chunks)](
        *given, keys, counts, masses, listed, sizes, mass, *shape, MOST=most, TILE=tile, CHUNK_TILES=_CHUNK_TILES,
        num_warps=8, launch_pdl=begins_early(),
    )  # fmt: skip
    _draw_kernel[(rows,)](
        *given, keys, listed, sizes, mass, token_ids, *shape, MOST=most, TILE=tile,
        num_warps=8, launch_pdl=begins_early(),
    )  # fmt: skip
    return token_ids
