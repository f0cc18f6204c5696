"""Prompts of compressed attention with plain keys and values, against dense attention in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, AttentionShape
from engine_svc.attention.context import ContextPart
from engine_svc.attention.expansion import TritonExpansion
from engine_svc.attention.registry import create_backend
from tests.conformance.test_attention import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    TOLERANCE,
    dense,
    make_sequences,
    metadata_of,
    soil,
)

pytestmark = pytest.mark.usefixtures("short_prompts")

HEADS = 3
BATCHES = {
    "one prompt": [(0, 50)],
    "prompts": [(0, 40), (0, 16), (0, 33)],
    "chunks": [(300, 20), (128, 37), (127, 40)],
    "mixed": [(50, 1), (130, 70), (31, 3), (0, 45), (3, 9)],
}


class Dims(NamedTuple):
    """Sizes of a model with compressed attention."""

    rank: int
    plain: int
    rotated: int
    value: int


@pytest.fixture
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 16 tokens have plain keys and values, computed for 128 positions at a time."""
    for place in ("engine_svc.attention.expansion", "engine_svc.attention.triton"):
        monkeypatch.setattr(f"{place}.MIN_QUERIES", 16)
    monkeypatch.setattr("engine_svc.attention.expansion._BYTES", 1)


def check_expansion(backend: AttentionBackend, dims: Dims, lengths: list[tuple[int, int]]) -> TritonExpansion:
    """Compares the results of a batch, and returns how its prompts attended.

    The cache is full of NaN wherever no sequence has a vector.
    """
    shape = backend.shape
    torch.manual_seed(0)
    options = AttentionOptions((dims.plain + dims.rotated) ** -0.5)
    matrices = torch.randn(HEADS, dims.plain + dims.value, dims.rank).to(shape.device, shape.dtype) / dims.rank**0.5
    sequences = make_sequences(lengths, 0)
    vectors = [torch.randn(sum(pair), dims.rank + dims.rotated).to(shape.device, shape.dtype) for pair in lengths]
    queries = [torch.randn(new, HEADS, dims.plain + dims.rotated).to(shape.device, shape.dtype) for _, new in lengths]
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    soil(backend, cache, list(range(NUM_BLOCKS)), NUM_BLOCKS * shape.block_size, torch.nan)
    for sequence, held in zip(sequences, vectors, strict=True):
        held = held[: sequence.computed]
        places = torch.arange(len(held))
        slots = torch.tensor(sequence.blocks)[places // shape.block_size] * shape.block_size + places % shape.block_size
        cache.view(-1, shape.head_dim)[slots.to(shape.device)] = held.to(cache.dtype)

    def expand(found: torch.Tensor) -> torch.Tensor:
        return torch.einsum("kr,hdr->khd", found[:, : dims.rank], matrices).contiguous()

    expansion = backend.prepare(metadata_of(sequences, shape.device)).expansion
    assert isinstance(expansion, TritonExpansion)
    query = torch.cat(queries)
    output = query.new_full((len(query), HEADS, dims.value), torch.nan)
    new = torch.cat([held[-len(own) :] for held, own in zip(vectors, queries, strict=True)])[:, None]
    if expansion.others:
        keys_to_vectors = torch.einsum("qhd,hdr->qhr", query[..., : dims.plain], matrices[:, : dims.plain])
        to_vectors = torch.cat((keys_to_vectors, query[..., dims.plain :]), 2)[expansion.others.rows]
        summed = backend.forward(to_vectors, new, new, cache, expansion.others.prepared, options)
        values = torch.einsum("qhr,hdr->qhd", summed[..., : dims.rank], matrices[:, dims.plain :])
        output[expansion.others.rows] = values
    expansion.attend(query, query[..., dims.plain :].contiguous(), new, expand, cache, output, options.scale)
    expected = []
    for held, own in zip(vectors, queries, strict=True):
        both = torch.einsum("kr,hdr->khd", held[:, : dims.rank].double(), matrices.double())
        key = torch.cat((both[..., : dims.plain], held[:, None, dims.rank :].expand(-1, HEADS, -1)), 2)
        expected.append(dense(own, key, both[..., dims.plain :], options))
    tolerance = 3 * TOLERANCE[shape.dtype]
    torch.testing.assert_close(output.double(), torch.cat(expected), atol=tolerance, rtol=tolerance)
    return expansion


def latent_backend(dims: Dims, dtype: torch.dtype = torch.float32, device: str = "cpu") -> AttentionBackend:
    size, expanded = dims.rank + dims.rotated, dims.plain + dims.value
    shape = AttentionShape(
        HEADS, 1, size, BLOCK_SIZE, dtype, torch.device(device), keys_are_values=True, expanded_dim=expanded
    )
    return create_backend("triton", shape, None)


@pytest.mark.parametrize("batch", BATCHES)
def test_batches(batch: str) -> None:
    dims = Dims(32, 16, 16, 32)
    expansion = check_expansion(latent_backend(dims), dims, BATCHES[batch])
    assert expansion.is_carried == (batch in ("chunks", "mixed"))
    assert (expansion.others is not None) == (batch == "mixed")


@pytest.mark.parametrize("dims", [Dims(24, 24, 8, 16), Dims(64, 32, 16, 32)], ids=str)
def test_dimensions(dims: Dims) -> None:
    """Those that are powers of two, as products need them, and others."""
    check_expansion(latent_backend(dims, torch.float16), dims, BATCHES["chunks"])


def test_graphs_are_replayed_unless_expanding_saves_more(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = latent_backend(Dims(32, 16, 16, 32))

    def is_replayed(new: int, length: int) -> bool:
        return backend.plan(np.array([1, new]), np.array([50, length]), 2, new + 1) is not None

    assert is_replayed(1024, 1024) and is_replayed(16, 100_000)
    assert not is_replayed(4096, 9000)
    assert (16, 4096) in backend.tails  # compiles its kernels
    monkeypatch.setattr("engine_svc.attention.triton.MIN_QUERIES", 5000)
    assert is_replayed(4096, 9000)


def test_memory_of_a_round_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    dims = Dims(32, 16, 16, 32)
    monkeypatch.setattr("engine_svc.attention.expansion._BYTES", 1 << 20)
    positions = (1 << 20) // (4 * HEADS * (dims.plain + dims.value)) // 128 * 128
    assert latent_backend(dims).decoding_bytes(1, 1) == 4 * positions * (HEADS * 48 + 48)


@pytest.mark.parametrize(
    "changes",
    [{"batch_invariant": True}, {"expanded_dim": 0}, {"part": ContextPart(0, 2)}],
    ids=lambda each: next(iter(each)),
)
def test_prompts_that_attend_to_vectors(changes: dict[str, Any]) -> None:
    """With adapters, for which expanded_dim is 0, and where both ways would not do; and with scaled vectors."""
    shape = replace(latent_backend(Dims(32, 16, 16, 32)).shape, **changes)
    metadata = metadata_of(make_sequences([(0, 50)], 0), shape.device)
    assert create_backend("triton", shape, None).prepare(metadata).expansion is None
    scaled = latent_backend(Dims(32, 16, 16, 32))
    with scaled.calculate_scales():
        assert scaled.prepare(metadata).expansion is None
