"""The choice of blocks by an indexer, and attention to them, against plain formulas in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, AttentionShape, CacheScales
from engine_svc.attention.chosen_blocks import ChosenBlocks
from engine_svc.attention.registry import create_backend
from tests.conformance.test_attention import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    TOLERANCE,
    Sequence,
    make_sequences,
    metadata_of,
    soil,
)

BATCHES = {
    "decoding": [(90, 1), (200, 1), (47, 1), (48, 1)],
    "chunks": [(30, 40), (48, 17), (130, 3)],
    "mixed": [(3, 9), (150, 1), (20, 60), (0, 1)],
}
SIZE, MOST, LOCAL = 12, 4, 2  # of a block, chosen blocks, and those that are chosen in any case
KV_HEADS, GROUP, DIM, KEY_DIM = 2, 3, 16, 24


def chosen_blocks(backend: str, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> ChosenBlocks:
    shape = AttentionShape(
        KV_HEADS * GROUP, KV_HEADS, DIM, BLOCK_SIZE, dtype, torch.device("cpu"), cache_dtype=cache_dtype,
        most_chosen=SIZE * MOST,
    )  # fmt: skip
    of_keys = AttentionShape(
        KV_HEADS, 1, KEY_DIM, BLOCK_SIZE, dtype, torch.device("cpu"), keys_are_values=True, cache_dtype=cache_dtype
    )
    attention, keys = create_backend(backend, shape, None), create_backend(backend, of_keys, None)
    return ChosenBlocks(attention, keys, frozenset(), SIZE, LOCAL)


def cached(
    pairs: list[tuple[torch.Tensor, torch.Tensor]], sequences: list[Sequence], backend: AttentionBackend
) -> torch.Tensor:
    """A cache with these keys and values of each position, as they are stored; NaN everywhere else."""
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    soil(backend, cache, list(range(NUM_BLOCKS)), NUM_BLOCKS * BLOCK_SIZE, torch.nan)
    for (key, value), sequence in zip(pairs, sequences, strict=True):
        places = torch.arange(len(key))
        slots = torch.tensor(sequence.blocks)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        backend.write(key, value, cache, slots)
    return cache


def check(owner: ChosenBlocks, lengths: list[tuple[int, int]], scales: CacheScales = CacheScales()) -> None:
    """Compares each query's choice, and what it attends to.

    Args:
        scales: those by which the cached keys and values have been divided.
    """
    shape, sequences = owner.attention.shape, make_sequences(lengths, 0)
    torch.manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size).to(shape.dtype)

    def stored(count: int, heads: int, dim: int) -> torch.Tensor:
        return random(count, heads, dim).to(shape.stored).to(shape.dtype)

    totals = [sum(pair) for pair in lengths]
    keys = [stored(total, 1, KEY_DIM) for total in totals]
    pairs = [(stored(total, KV_HEADS, DIM), stored(total, KV_HEADS, DIM)) for total in totals]
    key_cache, cache = (
        cached([(key, key) for key in keys], sequences, owner.keys),
        cached(pairs, sequences, owner.attention),
    )
    choosing = owner.prepare(metadata_of(sequences, torch.device("cpu")), owner.attention.prepare)
    assert choosing is not None
    who = [(sequence, place) for sequence, (computed, new) in enumerate(lengths)
           for place in range(computed, computed + new) if place >= SIZE * MOST]  # fmt: skip
    assert choosing.positions.tolist() == [position for _, position in who]
    scoring, query = random(len(who), KV_HEADS, KEY_DIM), random(len(who), KV_HEADS * GROUP, DIM)
    options = AttentionOptions(DIM**-0.5)
    owner.attention.use_scales(options, scales)
    chosen = owner.choose(scoring, key_cache, choosing)
    output = owner.attend(query, chosen, cache, choosing, options)
    for (index, (sequence, position)), head in itertools.product(enumerate(who), range(KV_HEADS)):
        blocks, last = chosen[index, head].tolist(), position // SIZE
        assert len(set(blocks)) == MOST and set(range(last - LOCAL + 1, last + 1)) <= set(blocks)
        scores = scoring[index, head].double() @ keys[sequence][: position + 1, 0].double().t()
        worths = torch.stack([each.max() for each in scores.split(SIZE)])
        free = [block for block in range(last - LOCAL + 1) if block not in blocks]
        taken = [block for block in blocks if block <= last - LOCAL]
        assert not free or worths[taken].min() >= worths[free].max() - TOLERANCE[shape.dtype]
        seen = [at for block in blocks for at in range(block * SIZE, (block + 1) * SIZE) if at <= position]
        key, value = (each[seen, head].double() for each in pairs[sequence])
        group = slice(head * GROUP, (head + 1) * GROUP)
        weights = (query[index, group].double() @ key.t() * (scales.key * options.scale)).softmax(-1)
        tolerance = {"atol": TOLERANCE[shape.dtype] * scales.value, "rtol": TOLERANCE[shape.dtype]}
        torch.testing.assert_close(output[index, group].double(), weights @ value * scales.value, **tolerance)


@pytest.mark.parametrize(("backend", "batch"), [*itertools.product(("reference", "cpu"), BATCHES)])
def test_batches(backend: str, batch: str) -> None:
    check(chosen_blocks(backend, torch.float32), BATCHES[batch])


@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn])
def test_types(cache_dtype: torch.dtype | None) -> None:
    check(chosen_blocks("cpu", torch.float16, cache_dtype), BATCHES["decoding"])


def test_scales_of_the_cache() -> None:
    check(chosen_blocks("cpu", torch.float32), BATCHES["decoding"], CacheScales(2.0, 4.0))


def test_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, and keys and values, of few queries at a time are in memory."""
    for module in ("chosen", "chosen_blocks"):
        monkeypatch.setattr(f"engine_svc.attention.{module}.PART_BYTES", 1)
    check(chosen_blocks("cpu", torch.float32), BATCHES["mixed"])


def test_new_keys_and_values_are_divided_by_their_scales() -> None:
    owner, options = chosen_blocks("cpu", torch.float32), AttentionOptions(0.2)
    owner.attention.use_scales(options, CacheScales(2.0, 4.0))
    sequences = make_sequences([(60, 1)], 0)
    choosing = owner.prepare(metadata_of(sequences, torch.device("cpu")), owner.attention.prepare)
    assert choosing is not None and choosing.others is None
    (cache,) = owner.attention.allocate(NUM_BLOCKS, 1)
    key, value = torch.randn(2, 1, KV_HEADS, DIM)
    owner.write(key, value, cache, choosing, options)
    block, place = sequences[0].blocks[60 // BLOCK_SIZE], 60 % BLOCK_SIZE
    assert owner.attention.heads(cache)[:, :, block, place].equal(torch.stack([key[0] / 2, value[0] / 4]))
