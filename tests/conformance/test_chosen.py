"""The choice of positions by an indexer, and attention to them, against plain formulas in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, AttentionShape, CacheScales
from engine_svc.attention.chosen import Choosing, ChosenAttention, IndexQueries
from engine_svc.attention.registry import create_backend, create_chosen
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
    "prompts": [(0, 100), (0, 49), (0, 48)],
    "chunks": [(30, 40), (48, 17), (130, 3)],
    "mixed": [(3, 9), (150, 1), (20, 60), (0, 1)],
}
MOST, HEADS, INDEX_HEADS = 48, 3, 5


def chosen_attention(
    backend: str, dtype: torch.dtype, vector: int = 40, key: int = 24, device: str = "cpu",
    cache_dtype: torch.dtype | None = None,
) -> ChosenAttention:  # fmt: skip
    shape = AttentionShape(
        HEADS, 1, vector, BLOCK_SIZE, dtype, torch.device(device), keys_are_values=True, cache_dtype=cache_dtype,
        most_chosen=MOST,
    )  # fmt: skip
    of_keys = AttentionShape(
        INDEX_HEADS, 1, key, BLOCK_SIZE, dtype, torch.device(device), keys_are_values=True, cache_dtype=cache_dtype
    )
    return create_chosen(create_backend(backend, shape, None), create_backend(backend, of_keys, None))


def cached(values: list[torch.Tensor], sequences: list[Sequence], backend: AttentionBackend) -> torch.Tensor:
    """A cache with these values of each position, as they are stored; NaN everywhere else."""
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    soil(backend, cache, list(range(NUM_BLOCKS)), NUM_BLOCKS * BLOCK_SIZE, torch.nan)
    for held, sequence in zip(values, sequences, strict=True):
        places = torch.arange(len(held))
        slots = torch.tensor(sequence.blocks)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        backend.write(held[:, None], held[:, None], cache, slots.to(held.device))
    return cache


def check_choice(owner: ChosenAttention, lengths: list[tuple[int, int]]) -> Choosing:
    """Compares each query's choice, and what it attends to; returns which queries chose."""
    shape, sequences = owner.attention.shape, make_sequences(lengths, 0)
    torch.manual_seed(0)
    device, stored = shape.device, shape.stored

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size).to(device, shape.dtype)

    keys = [random(sum(pair), owner.keys.shape.head_dim).to(stored).to(shape.dtype) for pair in lengths]
    vectors = [random(sum(pair), shape.head_dim).to(stored).to(shape.dtype) for pair in lengths]
    key_cache, cache = cached(keys, sequences, owner.keys), cached(vectors, sequences, owner.attention)
    choosing = owner.prepare(metadata_of(sequences, device), owner.attention.prepare)
    assert choosing is not None
    expected = [
        (sequence, computed + place, start + place)
        for sequence, ((computed, new), start) in enumerate(
            zip(lengths, torch.tensor([0, *[new for _, new in lengths]]).cumsum(0).tolist(), strict=False)
        )
        for place in range(new)
    ]  # fmt: skip
    who = [each for each in expected if each[1] >= MOST]
    assert choosing.rows.tolist() == [row for *_, row in who]
    others = [] if choosing.others is None else choosing.others.rows.tolist()
    assert others == [row for _, position, row in expected if position < MOST]
    count = len(who)
    queries = IndexQueries(random(count, INDEX_HEADS, owner.keys.shape.head_dim), random(count, INDEX_HEADS).float())
    query, options = random(count, HEADS, shape.head_dim), AttentionOptions(shape.head_dim**-0.5)
    chosen = owner.choose(queries, key_cache, choosing)
    output = owner.attend(query, chosen, cache, choosing, options)
    tolerance = TOLERANCE[shape.dtype]
    for index, (sequence, position, _) in enumerate(who):
        products = (queries.query[index].double() @ keys[sequence][: position + 1].double().t()).relu()
        scores = queries.weights[index].double() @ products
        own = chosen[index].long()
        assert len(set(own.tolist())) == MOST and int(own.max()) <= position
        left = torch.ones(position + 1, dtype=torch.bool, device=device).index_fill(0, own, False)
        assert scores[own].min() >= scores[left].max() - 20 * tolerance * scores.abs().max()
        known = vectors[sequence][own].double()
        weights = (query[index].double() @ known.t() * options.scale).softmax(-1)
        torch.testing.assert_close(output[index].double(), weights @ known, atol=tolerance, rtol=tolerance)
    return choosing


# The interpreter is slow, and Triton's kernels do not tell queries of prompts from others.
SLOW = {("triton", "prompts"), ("triton", "mixed")}


@pytest.mark.parametrize(
    ("backend", "batch"),
    [pair for pair in itertools.product(("reference", "cpu", "triton"), BATCHES) if pair not in SLOW],
)
def test_batches(backend: str, batch: str) -> None:
    check_choice(chosen_attention(backend, torch.float32), BATCHES[batch])


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn])
def test_types(backend: str, cache_dtype: torch.dtype | None) -> None:
    check_choice(chosen_attention(backend, torch.float16, cache_dtype=cache_dtype), [(90, 1), (60, 3)])


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_choices_in_slices(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and vectors of few queries at a time are in memory."""
    monkeypatch.setattr("engine_svc.attention.chosen.PART_BYTES", 1)
    check_choice(chosen_attention(backend, torch.float32), [(60, 3), (90, 1)])


def test_parts_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries divide their chosen positions among programs."""
    monkeypatch.setattr("engine_svc.attention.chosen_triton._PART", 10)
    check_choice(chosen_attention("triton", torch.float32), [(90, 1)])


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_scales_of_the_cache(backend: str) -> None:
    """Cached vectors are divided by their scale, and results are those of the vectors themselves."""
    owner = chosen_attention(backend, torch.float32)
    options = AttentionOptions(0.2)
    owner.attention.use_scales(options, CacheScales(4.0, 4.0))
    sequences = make_sequences([(60, 1)], 0)
    metadata = metadata_of(sequences, torch.device("cpu"))
    choosing = owner.prepare(metadata, owner.attention.prepare)
    assert choosing is not None and choosing.others is None
    torch.manual_seed(0)
    vectors, query = torch.randn(61, 40), torch.randn(1, HEADS, 40)
    cache = cached([vectors[:60] / 4], sequences, owner.attention)
    owner.write(vectors[60:, None], vectors[60:, None], cache, choosing, options)
    chosen = torch.arange(13, 61, dtype=torch.int32)[None]
    output = owner.attend(query, chosen, cache, choosing, options)
    weights = (query[0].double() @ vectors[13:].double().t() * 0.2).softmax(-1)
    torch.testing.assert_close(output[0].double(), weights @ vectors[13:].double(), atol=1e-5, rtol=1e-5)


def test_short_contexts_choose_nothing() -> None:
    owner = chosen_attention("reference", torch.float32)
    metadata = metadata_of(make_sequences([(47, 1), (0, 48), (10, 3)], 0), torch.device("cpu"))
    assert owner.prepare(metadata, owner.attention.prepare) is None
