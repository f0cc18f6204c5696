"""Every attention backend with a part of each sequence: merged, the parts equal dense attention in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.attention.context import ContextPart, merge_parts
from tests.conformance.test_attention import BATCHES, BLOCK_SIZE, Sequence, dense, make_backend, metadata_of
from tests.support.native import AVAILABLE, every_level

NUM_BLOCKS, DIM = 40, 32
BACKENDS = ["reference", "cpu", "triton", *(["native"] if AVAILABLE else [])]


def make_parts(name: str, size: int, **changes: Any) -> list[AttentionBackend]:
    """Creates one backend per rank; each attends with 4 heads to its part of the single key-value head."""
    level = AVAILABLE[-1] if name == "native" else None
    fields = {"num_heads": 4, "num_kv_heads": 1, "head_dim": DIM, "level": level} | changes
    return [make_backend(name, part=ContextPart(rank, size), **fields) for rank in range(size)]


def check(parts: list[AttentionBackend], lengths: list[tuple[int, int]], options: AttentionOptions) -> None:
    """Caches the computed tokens, in two steps, then compares the output of the new tokens."""
    torch.manual_seed(0)
    shape, size = parts[0].shape, len(parts)
    blocks = iter(torch.randperm(NUM_BLOCKS).tolist())
    tokens = BLOCK_SIZE * size
    held = [[next(blocks) for _ in range(-(-sum(pair) // tokens))] for pair in lengths]
    caches = [part.allocate(NUM_BLOCKS, 1)[0] for part in parts]
    whole = [[torch.randn(sum(pair), heads, shape.head_dim) for heads in (shape.num_heads, 1, 1)] for pair in lengths]
    if shape.keys_are_values:
        whole = [[query, key, key] for query, key, _ in whole]

    def forward(pairs: list[tuple[int, int]]) -> torch.Tensor:
        rows = [[t[computed : computed + new] for t in ts] for (computed, new), ts in zip(pairs, whole, strict=True)]
        query, key, value = (torch.cat(column).to(shape.dtype) for column in zip(*rows, strict=True))
        sequences = [Sequence(*pair, table) for pair, table in zip(pairs, held, strict=True)]
        plain = dataclasses.replace(options, sinks=None)
        found = []
        for part, cache in zip(parts, caches, strict=True):
            metadata = metadata_of(sequences, torch.device("cpu"), part.shape.part)
            lse = torch.full(query.shape[:2], torch.nan)
            output = part.attend(query, key, value, cache, part.prepare(metadata), plain, lse)
            assert not output.isnan().any()
            assert (output[lse == -torch.inf] == 0).all()
            found.append((output, lse))
        outputs, sums = (torch.stack(column) for column in zip(*found, strict=True))
        return merge_parts(outputs, sums, options.sinks)

    before = [(0, computed) for computed, _ in lengths]
    if all(computed for _, computed in before):
        forward(before)
        found = forward(lengths)
    else:  # whole prompts, without cached tokens
        found = forward([(0, sum(pair)) for pair in lengths])
        lengths = [(0, sum(pair)) for pair in lengths]
    start, tolerance = 0, 1e-5 if shape.dtype == torch.float32 else 2e-2
    for (computed, new), (query, key, value) in zip(lengths, whole, strict=True):
        expected = dense(query[computed:], key, value, options)
        torch.testing.assert_close(found[start : start + new].double(), expected, atol=tolerance, rtol=tolerance)
        start += new


LENGTHS = {"decode": [(1, 1), (15, 1), (64, 1)], "mixed": [(37, 1), (31, 2), (32, 9), (1, 1)]}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("batch", [*LENGTHS, "prompts"])
def test_parts_come_to_the_whole(name: str, size: int, batch: str) -> None:
    check(make_parts(name, size), (BATCHES | LENGTHS)[batch], AttentionOptions(DIM**-0.5))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 1}, {"sliding_window": 12}, {"sliding_window": 12, "chunked": True}, {"softcap": 0.5},
        {"sinks": torch.tensor([2.0, -1.0, 0.5, 3.0])}, {"slopes": torch.tensor([0.01, 0.1, 0.5, 2.0])},
    ],
    ids=str,
)  # fmt: skip
def test_what_layers_see(name: str, changes: dict[str, Any]) -> None:
    check(make_parts(name, 3), LENGTHS["mixed"], AttentionOptions(DIM**-0.5, **changes))


@pytest.mark.parametrize("name", BACKENDS)
def test_vectors_that_are_keys_and_values(name: str) -> None:
    check(make_parts(name, 2, keys_are_values=True, head_dim=48), LENGTHS["mixed"], AttentionOptions(0.2))


@every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_each_level(level: str, dtype: torch.dtype) -> None:
    """Contexts span several of the kernel's partitions, some of which a window leaves out."""
    parts = make_parts("native", 2, level=level, dtype=dtype)
    check(parts, LENGTHS["mixed"], AttentionOptions(DIM**-0.5))


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_half_precision(name: str) -> None:
    check(make_parts(name, 2, dtype=torch.float16), LENGTHS["mixed"], AttentionOptions(DIM**-0.5))
