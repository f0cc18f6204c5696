"""Attention by the C++ kernels at each level, against dense attention in float64 and bitwise against itself."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, AttentionShape
from engine_svc.attention.stored import to_stored
from engine_svc.native.library import kernels
from tests.conformance.test_attention import (
    BATCHES,
    NUM_BLOCKS,
    WHOLE,
    Sequence,
    check_backend,
    make_backend,
    metadata_of,
)
from tests.support.for_each import for_each
from tests.support.native import EMULATED, every_level

# For contexts of several partitions, which are slow enough on an emulated processor.
SMALL = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16} if EMULATED else {}
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@every_level
@every_type
@for_each("window", [None, 1, 12, 64])
def test_batches(level: str, dtype: torch.dtype, window: int | None) -> None:
    for batch in BATCHES.values():
        check_backend(make_backend("native", level, dtype=dtype), batch, window)


@every_level
@every_type
@for_each(("heads", "kv_heads", "dim"), [(1, 1, 16), (4, 4, 96), (32, 1, 64), (6, 3, 80), (7, 1, 256), (40, 2, 112)])
def test_shapes(level: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    backend = make_backend("native", level, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype)
    check_backend(backend, BATCHES["mixed"], None)


@every_level
@every_type
@for_each("special", ["softcap", "sinks", "slopes", "softcap and slopes", "bidirectional slopes"])
@for_each("window", [None, 12])
def test_softcap_sinks_and_slopes(level: str, dtype: torch.dtype, special: str, window: int | None) -> None:
    lengths = [WHOLE] if "bidirectional" in special else [BATCHES["mixed"], [(1100, 3), (70, 1)]]
    for batch in lengths:
        check_backend(make_backend("native", level, dtype=dtype, **SMALL), batch, window, special)


@every_level
@every_type
@for_each("window", [None, 1, 12, 64])
def test_bidirectional_attention(level: str, dtype: torch.dtype, window: int | None) -> None:
    check_backend(make_backend("native", level, dtype=dtype), WHOLE, window, "bidirectional")


@every_level
@pytest.mark.parametrize("window", [None, 64])
def test_bidirectional_attention_over_several_partitions(level: str, window: int | None) -> None:
    backend = make_backend("native", level, **({"num_heads": 2} | SMALL))
    check_backend(backend, [(0, 1100)], window, "bidirectional")


@every_level
@every_type
@pytest.mark.parametrize("length", [1, 12, 64])
def test_windows_that_are_chunks(level: str, dtype: torch.dtype, length: int) -> None:
    for batch in (*BATCHES.values(), [(0, 201), (150, 130), (70, 1), (3, 64)]):
        check_backend(make_backend("native", level, dtype=dtype), batch, length, "chunked")


@every_level
@every_type
@pytest.mark.parametrize(("heads", "dim"), [(2, 48), (7 if EMULATED else 20, 576)])
def test_keys_that_are_values(level: str, dtype: torch.dtype, heads: int, dim: int) -> None:
    fields = {"num_heads": heads, "num_kv_heads": 1, "head_dim": dim, "dtype": dtype, "keys_are_values": True}
    backend = make_backend("native", level, **fields)
    assert backend.bytes_per_block(3) == 3 * 16 * dim * dtype.itemsize
    for dirt in (torch.nan, torch.inf):
        check_backend(backend, BATCHES["mixed"], None, dirt=dirt)


every_narrow_type = pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])


@every_level
@every_type
@every_narrow_type
@pytest.mark.parametrize("keys_are_values", [False, True])
def test_caches_of_8_bits(level: str, dtype: torch.dtype, stored: torch.dtype, keys_are_values: bool) -> None:
    fields = {"num_heads": 6, "num_kv_heads": 1 if keys_are_values else 2, "head_dim": 48, "dtype": dtype}
    backend = make_backend("native", level, **fields, keys_are_values=keys_are_values, cache_dtype=stored)
    assert backend.bytes_per_block(1) == 16 * 48 * (1 if keys_are_values else 4)
    for window in (None, 12):
        check_backend(backend, [*BATCHES["mixed"], (150, 130), (70, 1)], window)


@every_level
@every_type
@every_narrow_type
def test_numbers_are_rounded_to_8_bits_as_torch_does(level: str, dtype: torch.dtype, stored: torch.dtype) -> None:
    """Attention over a single token returns its value, which shows how each number was cached."""
    backend = make_backend("native", level, dtype=dtype, cache_dtype=stored)
    shape = backend.shape
    numbers = torch.arange(256, dtype=torch.uint8).view(stored).float().to(dtype)
    ties = (numbers[1:] + numbers[:-1]) / 2
    near = torch.cat([ties * factor for factor in (1, 1.001, 0.999)])
    values = torch.cat((numbers, near, torch.randn(500).to(dtype) * 20, torch.tensor([1e6, -1e6, 1e-9], dtype=dtype)))
    values = values[values.isfinite()]
    values = values[: len(values) // shape.head_dim * shape.head_dim].view(-1, 1, shape.head_dim)
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    prepared = backend.prepare(metadata_of([Sequence(0, 1, [3])], torch.device("cpu")))
    for value in values:
        query = value.new_zeros(1, shape.num_heads, shape.head_dim)
        value = value.expand(1, shape.num_kv_heads, -1)
        found = backend.forward(query, value, value, cache, prepared, AttentionOptions(1.0))
        assert found[0, 0].equal(to_stored(value[0, 0], stored).to(dtype))


@every_level
@every_type
@for_each("window", [None, 12])
@for_each("dirt", [torch.inf, -torch.inf])
def test_what_others_left_reaches_no_sum(level: str, dtype: torch.dtype, window: int | None, dirt: float) -> None:
    """Stale values of infinity do not reach any sum. All other tests use NaN for them."""
    check_backend(make_backend("native", level, dtype=dtype), BATCHES["mixed"], window, dirt=dirt)


@every_level
@every_type
@pytest.mark.parametrize(
    ("heads", "window"), [(2, None), (2, 12), (6, 12), (6, 100), *([] if EMULATED else [(32, None), (32, 100)])]
)
def test_long_prompts(level: str, dtype: torch.dtype, heads: int, window: int | None) -> None:
    """Covers prompts with several chunks of keys and more rows than one task handles."""
    backend = make_backend("native", level, num_heads=heads, head_dim=48 if EMULATED else 80, dtype=dtype)
    check_backend(backend, [(0, 201), (150, 130), (70, 1), (3, 64)], window)


SPECIALS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"sliding_window": 70}, "small window": {"sliding_window": 3}, "softcap": {"softcap": 0.5},
    "sinks": {"sinks": torch.randn(64, generator=torch.Generator().manual_seed(1))},
    "chunks": {"sliding_window": 40, "chunked": True},
    "slopes": {"slopes": torch.logspace(-8, 1, 64, base=2)},
}  # fmt: skip


SHAPES: list[tuple[int, int, int, torch.dtype | None, tuple[torch.dtype, ...]]] = [
    (7, 1, 16, None, (torch.float32, torch.bfloat16, torch.float16)),
    (4, 2, 16, torch.float8_e4m3fn, (torch.float32, torch.bfloat16, torch.float16)),
] if EMULATED else [
    (4, 2, 64, None, (torch.float32,)), (12, 4, 80, None, (torch.bfloat16, torch.float16)),
    (17, 1, 48, None, (torch.float32, torch.bfloat16)), (4, 2, 32, torch.float8_e4m3fn, (torch.float16,)),
]  # fmt: skip


@every_level
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "stored", "dtype"),
    [(*shape, dtype) for *shape, dtypes in SHAPES for dtype in dtypes],
    ids=str,
)
def test_rows_are_the_same_however_they_are_computed(
    level: str, heads: int, kv_heads: int, dim: int, stored: torch.dtype | None, dtype: torch.dtype
) -> None:
    """Bits are equal in one prompt, in chunks of any size, token by token and beside other sequences."""
    fields = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "dtype": dtype, "cache_dtype": stored}
    backend = make_backend("native", level, **fields)
    others = [] if EMULATED else [[149, 1], [1, 149], [7] * 4 + [31, 33, 58]]
    for fields in SPECIALS.values():
        whole = _in_cuts(backend, fields, [150])
        for cuts in ([1] * 3 + [58] + [1] * 8 + [55] + [1] * 8 + [18], [64, 64, 22], *others):
            assert torch.equal(whole, _in_cuts(backend, fields, cuts)), (fields, cuts[:3])
        for neighbours in (2, 30):  # with many sequences, a task handles several heads
            assert torch.equal(whole, _in_cuts(backend, fields, [60, 1, 1, 70, 18], neighbours)), (fields, neighbours)


@every_level
@pytest.mark.parametrize(
    ("dtype", "latent"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)],
    ids=str,
)
def test_partitions_may_be_anybodys(level: str, dtype: torch.dtype, latent: bool) -> None:
    """Contexts split into partitions give equal bits, whether one task or many threads process the partitions."""
    length, fields = 1070 if EMULATED else 2056, {}
    if latent:
        fields = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 48}
    backend = make_backend("native", level, dtype=dtype, keys_are_values=latent, **(fields | SMALL))
    windows: list[dict[str, Any]] = [{"sliding_window": 1030}, {"sliding_window": 1030, "chunked": True}]
    for fields in ({}, {"sliding_window": 5}, *([] if EMULATED else windows)):
        found = []
        ways = (1, [length]), (8, [length]), (2, [length - 10] + [1] * 10), (8, [length - 1030, 1000, 20] + [1] * 10)
        for threads, cuts in ways:
            kernels(level).set_threads(threads)
            found.append(_in_cuts(backend, fields, cuts))
        found.append(_in_cuts(backend, fields, [length - 5] + [1] * 5, neighbours=30))
        kernels(level).set_threads(torch.get_num_threads())
        assert all(torch.equal(found[0], other) for other in found[1:]), fields


@every_level
@every_type
@pytest.mark.parametrize("kind", ["keys and values", "latent", "8 bits"])
def test_what_contexts_begin_with_is_read_once_and_changes_nothing(level: str, dtype: torch.dtype, kind: str) -> None:
    """Sequences that share their first blocks, some more of them than others, are bitwise equal to each one alone."""
    shape: dict[str, Any] = {"keys and values": {"num_kv_heads": 2}, "latent": {"num_kv_heads": 1, "head_dim": 48}}.get(
        kind, {"cache_dtype": torch.float8_e4m3fn}
    )
    backend = make_backend("native", level, dtype=dtype, keys_are_values=kind == "latent", **(SMALL | shape))
    size = backend.shape.block_size
    blocks = iter(torch.randperm(8 * NUM_BLOCKS).tolist())
    stems = [list(itertools.islice(blocks, -(-positions // size))) for positions in (1100, 520, 300)]
    sequences = [  # (context, new tokens) after this many shared blocks of a stem
        Sequence(context, new, (stem := stems[which][:common]) + list(itertools.islice(blocks, 90 - len(stem))))
        for which, common, context, new in (
            (0, 1090 // size, 1180, 1), (0, 1090 // size, 1101, 3), (0, 500 // size, 900, 1), (0, 500 // size, 512, 40),
            (1, 520 // size, 1024, 1), (1, 520 // size, 540, 1), (2, 300 // size, 300, 1), (2, 200 // size, 301, 1),
        )
    ]  # fmt: skip
    (empty,) = backend.allocate(8 * NUM_BLOCKS, 1)
    filled = empty.copy_(torch.randn(empty.shape).to(empty.dtype))
    counts = [sequence.new for sequence in sequences]
    heads = (backend.shape.num_heads, backend.shape.num_kv_heads, backend.shape.num_kv_heads)
    tensors = [torch.randn(sum(counts), count, backend.shape.head_dim).to(dtype) for count in heads]
    if kind == "latent":
        tensors[2] = tensors[1]

    def attend(some: list[Sequence], parts: list[torch.Tensor], options: AttentionOptions) -> torch.Tensor:
        prepared = backend.prepare(metadata_of(some, backend.shape.device))
        return backend.forward(parts[0], parts[1], parts[2], filled.clone(), prepared, options)

    specials: tuple[dict[str, Any], ...] = ({}, {"softcap": 5.0}, {"sinks": torch.randn(heads[0])})
    for fields in specials[: None if kind == "keys and values" else 1]:
        options = AttentionOptions(backend.shape.head_dim**-0.5, **fields)
        together = attend(sequences, tensors, options).split(counts)
        for i, sequence in enumerate(sequences):
            alone = attend([sequence], [tensor.split(counts)[i] for tensor in tensors], options)
            assert torch.equal(alone, together[i]), (fields, i)


@functools.lru_cache(1)
def _random_tokens(shape: AttentionShape, count: int) -> tuple[torch.Tensor, ...]:
    """Returns queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(count, heads, shape.head_dim, generator=generator).to(shape.dtype)
        for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )
    return query, key, key if shape.keys_are_values else value


def _in_cuts(backend: AttentionBackend, fields: dict[str, Any], cuts: list[int], neighbours: int = 0) -> torch.Tensor:
    """Computes attention of one sequence in steps of the given sizes, always from the same tensors.

    Args:
        neighbours: the number of other sequences that decode beside it.
    """
    shape, total = backend.shape, sum(cuts)
    options = AttentionOptions(
        shape.head_dim**-0.5,
        **{
            name: value[: shape.num_heads].contiguous() if isinstance(value, torch.Tensor) else value
            for name, value in fields.items()
        },
    )
    needed = -(-total // shape.block_size)
    blocks = random.Random(str(cuts[:5])).sample(range(2 * needed), needed)
    (cache,) = backend.allocate(2 * needed + neighbours, 1)
    query, key, value = _random_tokens(shape, total)
    others = [Sequence(i % 6, 1, [2 * needed + i]) for i in range(neighbours)]
    found, start = [], 0
    for count in cuts:
        part = slice(start, start + count)
        beside = [torch.randn(len(others), *tensor.shape[1:]).to(shape.dtype) for tensor in (query, key, value)]
        tensors = [torch.cat((other, t[part])) for other, t in zip(beside, (query, key, value), strict=True)]
        metadata = metadata_of([*others, Sequence(start, count, blocks)], shape.device)
        prepared = backend.prepare(metadata)
        if shape.keys_are_values:
            tensors[2] = tensors[1]
        found.append(backend.forward(tensors[0], tensors[1], tensors[2], cache, prepared, options)[len(others) :])
        start += count
    return torch.cat(found)
