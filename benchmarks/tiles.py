"""Finds the fastest tiles for kernels on this GPU: `python -m benchmarks.tiles --shapes llama-3.1-8b --kernels row`.

The tiles that kernels are launched with are in engine_svc/kernels (`single_row_tiles`, `coded_row_tiles`,
`coded_tiles`, `int8_tiles`, `decode_tiles`) and in engine_svc/attention/triton.py (keys of a part), chosen by what this
printed on an H100. There are so many weights and KV caches that none is in the GPU's cache when its turn comes.

Kernels are compiled in several processes first, which takes longer than measuring them.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from triton.runtime.errors import OutOfResources, PTXASError

from benchmarks.attention import Case
from benchmarks.machine import heading
from benchmarks.models import SHAPES
from benchmarks.tiles_coded import FORMS, code_candidates, int8_candidates, random_codes
from benchmarks.timing import RECORDED_CALLS, best_seconds
from engine_svc.attention.base import AttentionMetadata, AttentionOptions
from engine_svc.attention.context import ContextPart
from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.attend import block_descriptor
from engine_svc.kernels.paged_decode import most_parts, paged_decode
from engine_svc.kernels.single_row import MatrixTiles, Norm, single_row_product, single_row_tiles
from engine_svc.kernels.single_row_experts import DOWN, Stack, single_row_experts
from engine_svc.kernels.tiles import Tiles

_BYTES = 300_000_000  # total size of the weights, or caches, that take turns
_BLOCK_SIZE, _SHOWN, _DEVICE = 64, 6, torch.device("cuda")
Candidate = tuple[str, Callable[[Any], Any]]  # its name, and a call with a weight or a cache


Measure = Callable[[Sequence[Any], Iterator[Candidate]], str]  # what is printed of candidates, given their turns


def fastest(turns: Sequence[Any], candidates: Iterator[Candidate]) -> str:
    """Microseconds of the best candidates, with their names. Those that cannot be compiled are left out."""
    found = []
    for name, call in candidates:
        calls = max(1, RECORDED_CALLS // len(turns))
        try:
            seconds = best_seconds(partial(_each, call, turns), _DEVICE, calls)
        except (OutOfResources, PTXASError):
            continue
        found.append((seconds / len(turns) * 1e6, name))
    return ", ".join(f"{time:.1f} ({name})" for time, name in sorted(found)[:_SHOWN])


def _compile_share(arguments: argparse.Namespace, index: int) -> None:
    """Compiles one of `processes` shares of all candidates, into Triton's cache."""
    counter = itertools.count()

    def compile_some(turns: Sequence[Any], candidates: Iterator[Candidate]) -> str:
        for _, call in candidates:
            if next(counter) % arguments.processes == index:
                with suppress(OutOfResources, PTXASError):
                    call(turns[0])
        return ""

    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        _tune(arguments, compile_some)


def _each(call: Callable[[Any], Any], turns: Sequence[Any]) -> None:
    for turn in turns:
        call(turn)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=_DEVICE, dtype=torch.bfloat16)


def row_products(shape: dict[str, Any]) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """(name, outputs, inputs, fused operations of the kernel) for the products of a dense layer and the head."""
    size, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    norm = {"norm": Norm(_random(1, size), _random(size), 1e-5)}
    yield "qkv", (heads + 2 * kv_heads) * dim, size, norm
    yield "o", size, heads * dim, {"total": _random(1, size), "added": _random(1, size)}
    yield "gate_up", 2 * inner, size, norm
    yield "down", size, inner, {"activation": NamedActivation("silu")}
    yield "head", shape["vocab_size"], size, {"wide": True}


def row_candidates(size: int, form: dict[str, Any]) -> Iterator[Candidate]:
    """Candidates for the product of one row; cuBLAS' product has no fused operations."""
    hidden = _random(1, 2 * size if "activation" in form else size)
    yield "cuBLAS", partial(F.linear, hidden[:, :size].contiguous())
    now = single_row_tiles(size)
    for tile in itertools.product((2, 4, 8), (1024, 2048), (2, 4, 8)):
        tiles = MatrixTiles(*tile)
        each = tiles.outputs * tiles.inputs // (32 * tiles.warps)  # values of each thread
        if tiles == now or (16 <= each <= 64 and tiles.inputs < 2 * size):
            yield "now: " * (tiles == now) + str(tile), partial(single_row_product, hidden, tiles=tiles, **form)


def tune_rows(shape: dict[str, Any], measure: Measure) -> None:
    """Tunes products of one row: tiles of outputs and inputs, and warps."""
    for name, outputs, size, form in row_products(shape):
        weights = [_random(outputs, size) for _ in range(max(2, _BYTES // (2 * outputs * size)))]
        print(f"| {name} of one row | {outputs} x {size} | {measure(weights, row_candidates(size, form))} |")


def tune_experts(shape: dict[str, Any], measure: Measure) -> None:
    """Tunes the tiles of one token's two expert products: the first with the second unchanged, then vice versa."""
    size, chosen = shape["hidden_size"], shape["num_experts_per_tok"]
    inner = shape.get("moe_intermediate_size", shape["intermediate_size"])
    each = 6 * inner * size  # bytes of an expert
    count = max(2 * chosen, 2 * _BYTES // each)
    turns = [torch.randperm(count, device=_DEVICE)[None, :chosen] for _ in range(8)]
    gate_up, down = Stack(_random(count, 2 * inner, size), None), Stack(_random(count, size, inner), None)
    given = _random(1, size), gate_up, down, torch.rand(1, chosen, device=_DEVICE)
    first, second = single_row_tiles(size), DOWN

    def candidates(is_first: bool) -> Iterator[Candidate]:
        for tile in itertools.product((2, 4, 8), (256, 512, 1024, 2048), (2, 4, 8)):
            tiles = MatrixTiles(*tile)
            if 16 <= tiles.outputs * tiles.inputs // (32 * tiles.warps) <= 64:
                both = (tiles, second) if is_first else (first, tiles)

                def experts(ids: torch.Tensor, both: tuple[MatrixTiles, MatrixTiles] = both) -> None:
                    single_row_experts(*given, ids, NamedActivation("silu"), both)

                yield "now: " * (both == (first, second)) + str(tile), experts

    for is_first in (True, False):
        name = "gate_up" if is_first else "down"
        print(f"| {chosen} experts, {name} | {size}, {inner} inside | {measure(turns, candidates(is_first))} |")


def decode_candidates(query: torch.Tensor, metadata: AttentionMetadata) -> Iterator[Candidate]:
    """Candidates for attention of one new token per sequence."""
    sequences, positions = len(query), sum(metadata.seq_lens_host)
    all_of_them = torch.arange(sequences, dtype=torch.int32, device=_DEVICE)
    given = (metadata.block_table, metadata.query_start_loc, metadata.seq_lens)
    programs = 4 * torch.cuda.get_device_properties(_DEVICE).multi_processor_count
    options = AttentionOptions(query.shape[-1] ** -0.5)
    for part, *tile in itertools.product((64, 128, 256, 512), (64, 128), (2, 4, 8), (2, 3)):
        tiles, capacity = Tiles(16, *tile), most_parts(positions, sequences, ContextPart(), part)

        def attend(cache: torch.Tensor, tiles: Tiles = tiles, part: int = part, capacity: int = capacity) -> None:
            descriptor = block_descriptor(cache, tiles.keys) if tiles.keys <= _BLOCK_SIZE else None
            output = torch.empty_like(query)
            paged_decode(
                query,
                cache,
                output,
                *given,
                all_of_them,
                capacity,
                programs,
                options,
                tiles,
                part,
                descriptor=descriptor,
            )

        if tiles.keys <= part:
            yield f"parts of {part}, {tiles.keys} keys, {tiles.warps} warps, {tiles.stages} stages", attend


def tune_decode(shape: dict[str, Any], measure: Measure) -> None:
    """Tunes decode attention: keys of a part and of a tile, warps, and stages."""
    heads, kv_heads, dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    for sequences, context in itertools.product((1, 8, 32), (1024, 8192)):
        metadata = Case(sequences, 1, context).metadata(_DEVICE)
        blocks = metadata.block_table.numel()
        count = max(2, _BYTES // (4 * blocks * _BLOCK_SIZE * kv_heads * dim))
        caches = [_random(2, blocks, _BLOCK_SIZE, kv_heads, dim) for _ in range(count)]
        candidates = decode_candidates(_random(sequences, heads, dim), metadata)
        print(f"| decode of {sequences} | at {context} | {measure(caches, candidates)} |")


def tune_codes(shape: dict[str, Any], measure: Measure) -> None:
    """Tunes products of one row and of few rows with weights in codes."""
    for name, outputs, size, form in row_products(shape):
        if name == "head":
            continue
        for grid, rows in itertools.product(FORMS, (1, 8, 32, 64)):
            if grid == "int8" and rows > 1:
                continue
            weights = [random_codes(grid, outputs, size, _DEVICE) for _ in range(max(2, _BYTES // (outputs * size)))]
            hidden = _random(rows, 2 * size if rows == 1 and "activation" in form else size)
            found = measure(weights, code_candidates(grid, hidden, form if rows == 1 else {}))
            print(f"| {name} of {rows} in {grid} | {outputs} x {size} | {found} |", flush=True)


def tune_int8(shape: dict[str, Any], measure: Measure) -> None:
    """Tunes products of int8 rows with int8 weights."""
    for name, outputs, size, _ in row_products(shape):
        if name == "head":
            continue
        for rows in (8, 32, 64, 256, 8192):
            count = 1 if rows == 8192 else max(2, _BYTES // (outputs * size))
            weights = [torch.randint(-127, 128, (outputs, size), device=_DEVICE).to(torch.int8) for _ in range(count)]
            found = measure(weights, int8_candidates(_random(rows, size), outputs))
            print(f"| {name} of {rows} in int8 | {outputs} x {size} | {found} |", flush=True)


_SHAPES = [name for name, shape in SHAPES.items() if "head_dim" in shape]  # all except latent attention
_TUNED = {"row": tune_rows, "experts": tune_experts, "decode": tune_decode, "codes": tune_codes, "int8": tune_int8}


def _tune(arguments: argparse.Namespace, measure: Measure) -> None:
    for shape in arguments.shapes:
        print(f"`{shape}`\n\n| kernel | of | µs |\n|---|---|---|")
        for kernel in arguments.kernels:
            _TUNED[kernel](SHAPES[shape], measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=_SHAPES, default=["qwen3-0.6b"])
    parser.add_argument("--kernels", nargs="+", choices=_TUNED, default=["row", "decode"])
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1), help="that compile")
    arguments = parser.parse_args()
    for shape in arguments.shapes:
        if "experts" in arguments.kernels and "num_experts_per_tok" not in SHAPES[shape]:
            parser.error(f"{shape} has no experts")
    context = multiprocessing.get_context("spawn")
    compilers = [context.Process(target=_compile_share, args=(arguments, each)) for each in range(arguments.processes)]
    for compiler in compilers:
        compiler.start()
    for compiler in compilers:
        compiler.join()
    print(heading())
    _tune(arguments, fastest)


if __name__ == "__main__":
    main()
