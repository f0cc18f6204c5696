"""Every attention backend against dense attention in float64, over random batches of a paged cache."""

from __future__ import annotations

import functools
import importlib
import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, AttentionShape
from engine_svc.attention.context import ContextPart
from engine_svc.attention.native import NativeBackend
from engine_svc.attention.registry import create_backend
from engine_svc.attention.stored import bits
from engine_svc.kernels.tiles import Tiles
from engine_svc.native.library import kernels
from tests.support.native import AVAILABLE, fastest_kernels, needs_native

BLOCK_SIZE, NUM_BLOCKS = 16, 80
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass
class Sequence:
    """One sequence: the number of cached and new tokens, and the blocks that hold them."""

    computed: int
    new: int
    blocks: list[int]


def make_sequences(lengths: list[tuple[int, int]], seed: int) -> list[Sequence]:
    free = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(free)
    return [
        Sequence(computed, new, [free.pop() for _ in range(-(-(computed + new) // BLOCK_SIZE))])
        for computed, new in lengths
    ]


def metadata_of(
    sequences: list[Sequence], device: torch.device, part: ContextPart = ContextPart()
) -> AttentionMetadata:
    """Builds the metadata for a backend that caches the given part of each sequence."""
    new = [sequence.new for sequence in sequences]
    lengths = [sequence.computed + sequence.new for sequence in sequences]
    width = max(len(sequence.blocks) for sequence in sequences)
    tokens = BLOCK_SIZE * part.size
    slots = [
        sequence.blocks[position // tokens] * BLOCK_SIZE + position % tokens // part.size
        if position % part.size == part.rank
        else -1
        for sequence in sequences
        for position in range(sequence.computed, sequence.computed + sequence.new)
    ]
    table = [sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence in sequences]
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_table=torch.tensor(table, dtype=torch.int32, device=device),
        slot_mapping=torch.tensor(slots, device=device),
        query_lens_host=new, seq_lens_host=lengths,
    )  # fmt: skip


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """Dense attention of one sequence in float64: query [new, heads, dim], key and value [all, kv_heads, dim]."""
    group = query.shape[1] // key.shape[1]
    query, key, value = query.double(), *(each.double().repeat_interleave(group, dim=1) for each in (key, value))
    seen, window = torch.arange(len(key), device=key.device), options.sliding_window or 1 << 30
    positions = seen[len(key) - len(query) :, None]
    first = positions // window * window if options.chunked else positions - window + 1
    end = positions + window if options.bidirectional else positions + 1
    scores = torch.einsum("qhd,khd->hqk", query, key) * options.scale
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if options.slopes is not None:
        scores = scores - options.slopes.to(scores)[:, None, None] * (positions - seen).abs()
    scores = scores.masked_fill((seen < first) | (seen >= end), -torch.inf)
    if options.sinks is not None:  # a sink is one more key to attend to, with no value
        sinks = options.sinks.to(scores)[:, None, None].expand(-1, len(query), 1)
        return torch.einsum("hqk,khd->qhd", torch.cat((scores, sinks), dim=2).softmax(-1)[:, :, :-1], value)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def soil(backend: AttentionBackend, cache: torch.Tensor, blocks: list[int], count: int, dirt: float) -> None:
    """Writes `dirt` to the first `count` positions of these blocks."""
    if isinstance(backend, NativeBackend):  # only its own kernels know the layout within a block
        slots = torch.tensor([block * BLOCK_SIZE + i for block in blocks for i in range(BLOCK_SIZE)][:count])
        dirty = torch.full((len(slots), backend.shape.num_kv_heads, backend.shape.head_dim), dirt)
        backend.write(*[dirty.to(backend.shape.dtype)] * 2, cache, slots)
        return
    value = bits(torch.tensor([dirt]).to(cache.dtype).to(cache.device))[0]
    for block in blocks[: -(-count // BLOCK_SIZE)]:
        held, count = min(count, BLOCK_SIZE), count - BLOCK_SIZE
        if backend.block_dimension == 2:
            bits(cache)[:, :, block, : held * backend.shape.head_dim] = value
        else:
            bits(cache)[:, block, :held] = value


@dataclass
class Case:
    """Input for a backend: sequences, (query, key, value) of all their tokens, and the new tokens' expected output."""

    sequences: list[Sequence]
    options: AttentionOptions
    whole: list[tuple[torch.Tensor, ...]]
    expected: list[torch.Tensor]


@functools.lru_cache(8)  # tests run one backend, or instruction level, after the other
def make_case(shape: AttentionShape, lengths: tuple[tuple[int, int], ...], window: int | None, special: str) -> Case:
    torch.manual_seed(0)
    options = AttentionOptions(
        shape.head_dim**-0.5, window, 0.5 if "softcap" in special else None,
        (torch.randn(shape.num_heads) * 2).to(shape.device) if special == "sinks" else None,
        chunked=special == "chunked",
        bidirectional="bidirectional" in special,
        slopes=torch.logspace(-3, 1, shape.num_heads, base=2).to(shape.device) if "slopes" in special else None,
    )  # fmt: skip

    def random_tokens(count: int, heads: int) -> torch.Tensor:
        if shape.cache_dtype:  # values that 8 bits hold exactly, because Triton's interpreter does not round as GPUs do
            return torch.randint(-8, 9, (count, heads, shape.head_dim)).to(shape.dtype) / 4
        return torch.randn(count, heads, shape.head_dim).to(shape.dtype)

    kv_heads = shape.num_kv_heads
    whole = [tuple(random_tokens(sum(pair), n) for n in (shape.num_heads, kv_heads, kv_heads)) for pair in lengths]
    if shape.keys_are_values:
        whole = [(query, key, key) for query, key, _ in whole]
    expected = [dense(q[computed:], k, v, options) for (computed, _), (q, k, v) in zip(lengths, whole, strict=True)]
    return Case(make_sequences([*lengths], 0), options, whole, expected)


def check_backend(
    backend: AttentionBackend,
    lengths: list[tuple[int, int]],
    window: int | None,
    special: str = "",
    dirt: float = torch.nan,
) -> None:
    """Caches the computed tokens, then runs the new ones and compares their output.

    Args:
        dirt: fills all blocks beforehand, and positions that the window has passed: stale data of other sequences.
    """
    shape = backend.shape
    case = make_case(shape, tuple(lengths), window, special)
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    soil(backend, cache, list(range(NUM_BLOCKS)), NUM_BLOCKS * BLOCK_SIZE, dirt)

    def forward(parts: list[Sequence], tensors: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
        query, key, value = (torch.cat(column).to(shape.device, shape.dtype) for column in zip(*tensors, strict=True))
        if not shape.keys_are_values:  # slices of one tensor, as in models
            query, key, value = torch.cat((query, key, value), 1).split([query.shape[1], *[key.shape[1]] * 2], 1)
        prepared = backend.prepare(metadata_of(parts, shape.device))
        return backend.forward(query, key, value, cache, prepared, case.options)

    before = [(s, t) for s, t in zip(case.sequences, case.whole, strict=True) if s.computed]
    if before:
        past = [Sequence(0, s.computed, s.blocks) for s, _ in before]
        forward(past, [tuple(t[: s.computed] for t in tensors) for s, tensors in before])
    for sequence in case.sequences:
        soil(backend, cache, sequence.blocks, max(0, case.options.first_seen(sequence.computed)), dirt)
    new = [tuple(t[s.computed :] for t in ts) for s, ts in zip(case.sequences, case.whole, strict=True)]
    found = forward(case.sequences, new).cpu().double()
    torch.testing.assert_close(
        found, torch.cat(case.expected), atol=TOLERANCE[shape.dtype], rtol=TOLERANCE[shape.dtype]
    )


BATCHES: dict[str, list[tuple[int, int]]] = {
    "one token": [(0, 1)],
    "one prompt": [(0, 37)],
    "prompts": [(0, 5), (0, 16), (0, 33)],
    "chunks": [(16, 20), (7, 9), (40, 1)],
    "decode": [(0, 1), (15, 1), (16, 1), (17, 1), (100, 1)],
    "few tokens": [(40, 3), (0, 8), (15, 2), (17, 1), (9, 9)],
    "mixed": [(50, 1), (0, 20), (31, 1), (32, 17), (3, 1)],
}


def make_backend(name: str, level: str | None = None, **changes: Any) -> AttentionBackend:
    fields = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "dtype": torch.float32} | changes
    shape = AttentionShape(block_size=BLOCK_SIZE, device=torch.device("cpu"), **fields)
    return create_backend(name, shape, kernels(level) if level else None)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(
    ("batch", "window"),
    # The only context of more than 64 tokens is in "decode".
    [*[(batch, window) for batch in BATCHES for window in (None, 12)], ("few tokens", 1), ("mixed", 1), ("decode", 64)],
)
def test_batches(name: str, batch: str, window: int | None) -> None:
    check_backend(make_backend(name), BATCHES[batch], window)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 8), (4, 4, 16), (8, 1, 64), (6, 3, 80)])
def test_shapes(name: str, heads: int, kv_heads: int, dim: int) -> None:
    backend = make_backend(name, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim)
    check_backend(backend, BATCHES["mixed"], None)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("batch", ["chunks", "mixed"])
def test_layers_that_share_memory(monkeypatch: pytest.MonkeyPatch, name: str, batch: str) -> None:
    """Attends in the middle one of three parts of the memory, and leaves the others untouched."""
    backend = make_backend(name, AVAILABLE[-1] if name == "native" else None)
    (memory,) = backend.allocate_memory(NUM_BLOCKS, 1, 3 * backend.shape.row)
    monkeypatch.setattr(backend, "allocate", lambda *_: [backend.carve(memory, 1)])
    check_backend(backend, BATCHES[batch], 12)
    for neighbor in (0, 2):
        assert not backend.carve(memory, neighbor).any()


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(
    ("special", "window"),
    [("softcap", None), ("sinks", None), ("sinks", 12), ("slopes", None), ("softcap and slopes", 12)],
)
def test_softcap_sinks_and_slopes(name: str, special: str, window: int | None) -> None:
    check_backend(make_backend(name), BATCHES["mixed"], window, special)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(
    ("batch", "length"),
    [("mixed", 1), ("chunks", 12), ("decode", 12), ("mixed", 12), ("chunks", 32), ("mixed", 32), ("decode", 64)],
)
def test_windows_that_are_chunks(name: str, batch: str, length: int) -> None:
    """Chunks begin at multiples of their length; a prompt may span several."""
    check_backend(make_backend(name), BATCHES[batch], length, "chunked")


# Whole sequences, as in encoders.
WHOLE = [(0, 1), (0, 37), (0, 5), (0, 16), (0, 130), (0, 2)]


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("window", [None, 1, 12, 64])
def test_bidirectional_attention(name: str, window: int | None) -> None:
    check_backend(make_backend(name), WHOLE, window, "bidirectional")
    if window in (None, 12):
        check_backend(make_backend(name), WHOLE, window, "bidirectional slopes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "special"),
    [
        (None, ""), (None, "softcap and slopes"), (40, "sinks"), (48, "chunked"), (None, "bidirectional"),
        (40, "bidirectional"),
    ],
)  # fmt: skip
def test_tiles_that_are_seen_whole(monkeypatch: pytest.MonkeyPatch, window: int | None, special: str) -> None:
    """Covers fully visible tiles beside partly visible ones; groups of three heads do not fill a tile evenly."""
    monkeypatch.setattr("engine_svc.attention.triton.prefill_tiles", lambda *_, **__: Tiles(16, 16, 4))
    lengths = [(0, 60), (0, 5)] if special == "bidirectional" else [(70, 9), (0, 60), (33, 1)]
    check_backend(make_backend("triton", num_heads=6), lengths, window, special)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(("window", "dirt"), [(None, torch.inf), (12, torch.inf), (12, -torch.inf)])
def test_what_others_left_reaches_no_sum(name: str, window: int | None, dirt: float) -> None:
    """Stale values of infinity do not reach any sum. All other tests use NaN for them."""
    check_backend(make_backend(name), BATCHES["mixed"], window, dirt=dirt)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_others_left_in_8_bits(name: str, dtype: torch.dtype) -> None:
    check_backend(make_backend(name, cache_dtype=dtype), BATCHES["mixed"], 12)


# Triton's interpreter computes in numpy, which has no bfloat16: bfloat16 is tested on GPUs only.
@pytest.mark.parametrize(
    ("name", "dtype"), [("cpu", torch.bfloat16), ("cpu", torch.float16), ("triton", torch.float16)]
)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    check_backend(make_backend(name, dtype=dtype), BATCHES["mixed"], 24)


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_caches_of_8_bits(name: str, dtype: torch.dtype) -> None:
    backend = make_backend(name, cache_dtype=dtype)
    assert backend.bytes_per_block(1) == 2 * BLOCK_SIZE * 2 * 32
    check_backend(backend, BATCHES["mixed"], None)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_scales_keep_what_8_bits_cannot_hold(name: str) -> None:
    """With scales, keys and values up to some thousands keep their precision, although e4m3 ends at 448."""
    backend = make_backend(name, cache_dtype=torch.float8_e4m3fn)
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    prepared = backend.prepare(metadata_of(make_sequences([(0, 50)], 0), torch.device("cpu")))
    query, key, value = torch.randn(50, 4, 32) / 1000, torch.randn(50, 2, 32) * 1000, torch.randn(50, 2, 32) * 1000
    options = AttentionOptions(32**-0.5)
    expected = dense(query, key, value, options)

    def error() -> float:
        found = backend.forward(query, key, value, cache, prepared, options)
        return float((found - expected).abs().mean() / expected.abs().mean())

    assert error() > 0.2
    with backend.calculate_scales():
        error()
    assert error() < 0.05


@pytest.mark.parametrize("name", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("batch", ["chunks", "mixed"])
def test_keys_that_are_values(name: str, batch: str) -> None:
    backend = make_backend(name, num_kv_heads=1, head_dim=40, keys_are_values=True)
    assert backend.bytes_per_block(3) == 3 * BLOCK_SIZE * 40 * 4
    check_backend(backend, BATCHES[batch], None)


@pytest.mark.parametrize(("window", "special"), [(None, ""), (75, ""), (50, "chunked")])
def test_decode_over_several_parts(monkeypatch: pytest.MonkeyPatch, window: int | None, special: str) -> None:
    """Covers contexts longer than one part of the split decode kernel, and exactly at its edge."""
    for place in ("engine_svc.kernels.paged_decode", "engine_svc.attention.triton"):
        monkeypatch.setattr(f"{place}.PART", 32)  # twice as many keys for single tokens
    check_backend(make_backend("triton"), [(63, 1), (64, 1), (130, 1), (3, 1)], window, special)
    check_backend(make_backend("triton"), [(61, 3), (97, 8), (3, 2)], window, special)


@pytest.mark.parametrize(
    ("together", "cases"),
    [(1, [(None, "sinks"), (30, "")]), (4, [(30, "sinks"), (None, "softcap and slopes")])],
    ids=["alone", "in fours"],
)
def test_parts_that_are_added_together(
    monkeypatch: pytest.MonkeyPatch, together: int, cases: list[tuple[int | None, str]]
) -> None:
    """Covers fewer parts than there is room for, and more; with a window, a token does not see some of them."""
    for place in ("engine_svc.kernels.paged_decode", "engine_svc.attention.triton"):
        monkeypatch.setattr(f"{place}.PART", 16)
    monkeypatch.setattr("engine_svc.kernels.paged_decode.parts_together", lambda _: together)
    monkeypatch.setattr("engine_svc.attention.triton.decode_tiles", lambda *_, **__: Tiles(16, 16, 4))
    for window, special in cases:
        check_backend(make_backend("triton", num_heads=6), [(75, 1), (60, 7), (14, 4), (20, 1)], window, special)


@pytest.mark.parametrize(("window", "special"), [(None, "sinks"), (50, "slopes"), (40, "chunked")])
def test_ends_of_prompts_behind_long_contexts(
    monkeypatch: pytest.MonkeyPatch, window: int | None, special: str
) -> None:
    """Keys are split among programs, each of which handles tiles of all such prompts, even those with fewer tokens."""
    module, split = importlib.import_module("engine_svc.attention.triton"), []
    for name, value in (("_LONG_PART", 32), ("_LONG_CONTEXT", 64), ("multiprocessors", lambda _: 24)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "prefill_tiles", lambda *_, **__: Tiles(16, 16, 4))
    backend = make_backend("triton", num_heads=3, num_kv_heads=1)
    together = backend._together
    monkeypatch.setattr(
        backend, "_together", lambda on_device, *how: split.append(on_device.tolist()) or together(on_device, *how)
    )
    check_backend(backend, [(70, 12), (40, 9), (50, 20), (30, 1), (0, 20)], window, special)
    assert split[-3:] == [[3], [], [0, 2]]


def test_which_prompts_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting depends on the work per multiprocessor (there are 132) and on the room for partial results."""
    monkeypatch.setattr("engine_svc.attention.triton.multiprocessors", lambda _: 132)
    backend = make_backend("triton", num_heads=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)

    def split(*sequences: tuple[int, int]) -> list[bool]:
        found = backend._outlast(*(torch.tensor(each).numpy() for each in zip(*sequences, strict=True)))
        return list(found)

    assert split((30, 100_000)) == split((9, 4097)) == split((100, 50_000)) == [True]
    assert split((30, 4096)) == split((300, 50_000)) == split((8192, 8192)) == [False]
    assert split((200, 100_000)) == [False]  # one partial result per token and part
    assert split((30, 100_000), (2000, 2000)) == [True, False]
    assert split((30, 20_000), (4000, 30_000)) == [False, False]
    assert split(*[(17, 30_000)] * 8) == [True] * 8
    assert split(*[(17, 30_000)] * 9) == [False] * 9
    assert backend.most_positions(9, 17) == sys.maxsize
    assert backend.most_positions(8, 17) == (backend._most_parts // 17 - 7) * 1024 - 1


@pytest.mark.parametrize(("window", "copies"), [(100, False), (None, True), (100, True)])
def test_tiles_in_one_block(monkeypatch: pytest.MonkeyPatch, window: int | None, copies: bool) -> None:
    """A GPU can copy tiles within one block by itself, except those cut off by the sequence's end or the window."""
    monkeypatch.setattr(f"{__name__}.BLOCK_SIZE", 64)
    backend = make_backend("triton", dtype=torch.float16, head_dim=64)
    monkeypatch.setattr(backend, "_copies_tiles", copies)
    check_backend(backend, [(130, 1), (63, 1), (0, 1), (66, 70), (125, 5), (0, 65)], window)


# One context longer than two parts of the decode kernel, beside short ones, and prompts, which do not affect decoding.
LONG_AND_SHORT = [(20, 1), (149, 1), (0, 1), (9, 40), (63, 1), (12, 1), (0, 30)]


@pytest.mark.slow
@pytest.mark.parametrize(("known", "window"), [("lengths", 70), ("their sum", None), ("little room", 70)])
def test_decoding_goes_by_the_sum_of_the_contexts(
    monkeypatch: pytest.MonkeyPatch, known: str, window: int | None
) -> None:
    """When a graph is recorded, only the sum is known; if it is too large, some sequences run after the others."""
    module = importlib.import_module("engine_svc.attention.triton")  # not at the top: there is no Triton on ARM
    backend, paged_decode, capacities = make_backend("triton"), module.paged_decode, []
    searched = importlib.import_module("triton").language.constexpr(2)
    monkeypatch.setattr("engine_svc.kernels.paged_decode._SEARCHED", searched)
    for place in ("engine_svc.kernels.paged_decode", "engine_svc.attention.triton"):
        monkeypatch.setattr(f"{place}.PART", 64)

    def decode(*given: Any, **named: Any) -> None:
        capacities.append(given[7])
        paged_decode(*given, **named)

    def averaged(metadata: AttentionMetadata) -> AttentionMetadata:
        decoders = sum(new == 1 for new in metadata.query_lens_host)
        total = sum(s for s, new in zip(metadata.seq_lens_host, metadata.query_lens_host, strict=True) if new == 1)
        average = -(-total // max(1, decoders))
        return replace(metadata, seq_lens_host=[average] * len(metadata.seq_lens_host))

    monkeypatch.setattr(module, "paged_decode", decode)
    if known == "their sum":
        prepare = backend.prepare
        monkeypatch.setattr(backend, "prepare", lambda metadata: prepare(averaged(metadata)))
    elif known == "little room":
        monkeypatch.setattr(backend, "_most_parts", 4)
    check_backend(backend, LONG_AND_SHORT, window)
    assert backend.decoding_bytes(5, 249) == 4 * 4 * (32 + 2) * (4 if known == "little room" else 8 * 8)
    assert capacities == ([3, 3] if known == "little room" else [6])  # sized for twice as many keys: enough parts


@needs_native
def test_native_caches_nothing_of_nobodys_tokens() -> None:
    """Padding tokens, whose slot is -1, are not written; steps recorded before there are any sequences have them."""
    shape = AttentionShape(4, 2, 32, BLOCK_SIZE, torch.bfloat16, torch.device("cpu"))
    backend = NativeBackend(shape, fastest_kernels())
    (cache,), (expected,) = backend.allocate(4, 1), backend.allocate(4, 1)
    rows = torch.randn(5, 2, 32, dtype=torch.bfloat16)
    backend.write(rows, rows, cache, torch.tensor([-1, 0, -1, -1, 17]))
    backend.write(rows[[1, 4]], rows[[1, 4]], expected, torch.tensor([0, 17]))
    assert cache.equal(expected)
