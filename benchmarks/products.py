"""Speed of matrix products, compared with torch and memory: `python -m benchmarks.products --rows 1 8 256`.

There are so many layers that none is in a processor cache when its turn comes. The time of a product is its shortest
time over all layers; kinds of weights take turns. With one thread, it is that thread's CPU time, which other processes
on the machine do not affect.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.machine import heading
from benchmarks.rates import read_rate
from engine_svc.native.levels import available_levels
from engine_svc.native.library import Kernels, kernels
from engine_svc.ops.base import Product
from engine_svc.ops.grids import E4M3, INT4, INT8
from engine_svc.ops.native import NativeOps
from engine_svc.ops.packing import PackedWeight, matrix_product, pack, pack_compressed
from engine_svc.ops.packing_coded import pack_coded
from engine_svc.ops.weights import CodedWeight, Grid

# (outputs, inputs) of the matrices in a layer of Qwen3-0.6B: two of attention, two of feed-forward.
_SHAPES = ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072))
_WEIGHTS = sum(outputs * size for outputs, size in _SHAPES)
_LAYERS, _ROUNDS, _SECONDS = 12, 4, 0.3
Make = Callable[[Kernels, tuple[int, int]], PackedWeight]
Layers = list[list[Product]]


@dataclass(frozen=True)
class Kind:
    """A kind of weights; `bits` is the number of bits per weight, including scales."""

    bits: float
    dtype: torch.dtype  # of inputs
    pack: Make


@dataclass(frozen=True, eq=False)
class Contender:
    """Layers of products with inputs of a dtype."""

    name: str
    dtype: torch.dtype
    bits: float
    layers: Layers


def _plain(dtype: torch.dtype) -> Make:
    return lambda found, shape: pack(found, (torch.randn(1, *shape) / 32).to(dtype))


def _compressed(found: Kernels, shape: tuple[int, int]) -> PackedWeight:
    weight = (torch.randn(shape) / 32).bfloat16()
    return pack_compressed(found, weight) or pack(found, weight)


def _int8(found: Kernels, shape: tuple[int, int]) -> PackedWeight:
    return pack(found, NativeOps(found).quantize_rows(torch.randn(shape)))


def _coded(grid: Grid, group: int, dtype: torch.dtype, has_offset: bool = False) -> Kind:
    def make(found: Kernels, shape: tuple[int, int]) -> PackedWeight:
        groups = (shape[0], -(-shape[1] // group))
        codes = torch.randint(len(grid.values), shape, dtype=torch.uint8)
        if grid is E4M3:  # values must be distributed like weights, with few very small numbers
            codes = (torch.randn(shape) * 100).to(torch.float8_e4m3fn).view(torch.uint8)
        scale, offset = torch.rand(groups).half().float() / 256, torch.rand(groups) / 32 if has_offset else None
        return pack_coded(found, CodedWeight(grid, codes, scale, offset, group), dtype)

    return Kind(grid.bits + (48 if has_offset else 16) / min(group, 128), dtype, make)


_KINDS = {
    **{str(dtype)[6:]: Kind(8.0 * dtype.itemsize, dtype, _plain(dtype)) for dtype in
       (torch.float32, torch.bfloat16, torch.float16)},
    "bfloat16 in 12 bits": Kind(12, torch.bfloat16, _compressed),
    "int8": Kind(8, torch.bfloat16, _int8),
    "4 bits by 128": _coded(INT4, 128, torch.bfloat16),
    "4 bits by 128 with offsets": _coded(INT4, 128, torch.bfloat16, has_offset=True),
    "4 bits by 32": _coded(INT4, 32, torch.bfloat16),
    "4 bits by 16": _coded(INT4, 16, torch.bfloat16),
    "8 bits by 32": _coded(INT8, 32, torch.bfloat16),
    "fp8": _coded(E4M3, 1 << 20, torch.bfloat16),
    "4 bits by 128, float16": _coded(INT4, 128, torch.float16),
    "8 bits by 32, float16": _coded(INT8, 32, torch.float16),
}  # fmt: skip
_USUAL = ("bfloat16", "int8", "4 bits by 128", "4 bits by 32", "8 bits by 32", "fp8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", choices=available_levels(), default=available_levels())
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_USUAL)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.inference_mode():
        for level in arguments.levels:
            rate = read_rate(torch.device("cpu"))
            print(heading(level))
            print(f"{arguments.threads} threads; {_WEIGHTS / 1e6:.1f} million weights. Reads: {rate / 1e9:.1f} GB/s.\n")
            print("| weights | bits | rows | µs | 10^9 operations/s | µs to read | ratio | bfloat16's µs / µs |")
            print("|---|---|---|---|---|---|---|---|")
            report(level, arguments.kinds, arguments.rows, arguments.threads, rate)


def report(level: str, names: Sequence[str], rows: Sequence[int], threads: int, rate: float) -> None:
    """Prints a level's part of the table; torch's bfloat16 product comes last for each number of rows."""
    loaded = kernels(level)
    loaded.set_threads(threads)
    contenders = [Contender(name, _KINDS[name].dtype, _KINDS[name].bits, _ours(loaded, _KINDS[name])) for name in names]
    contenders.append(Contender("torch's bfloat16", torch.bfloat16, 16, _layers(_torchs)))
    for count in rows:
        taken = dict.fromkeys(contenders, float("inf"))
        for contender in contenders * _ROUNDS:
            inputs = {size: torch.randn(count, size).to(contender.dtype) for _, size in _SHAPES}
            taken[contender] = min(taken[contender], layer_seconds(contender.layers, inputs, threads))
        usual = next((seconds for contender, seconds in taken.items() if contender.name == "bfloat16"), float("nan"))
        for contender, seconds in taken.items():
            rate_of_operations, least = 2 * _WEIGHTS * count / seconds / 1e9, _WEIGHTS * contender.bits / 8 / rate
            print(
                f"| {contender.name} | {contender.bits:g} | {count} | {seconds * 1e6:.0f} | "
                f"{rate_of_operations:.0f} | {least * 1e6:.0f} | {seconds / least:.2f} | {usual / seconds:.2f} |",
                flush=True,
            )  # fmt: skip


def _ours(loaded: Kernels, kind: Kind) -> Layers:
    return _layers(lambda shape: matrix_product(loaded, kind.pack(loaded, shape), torch.Size(shape), None))


def _torchs(shape: tuple[int, int]) -> Product:
    weight = (torch.randn(shape) / 32).bfloat16()
    return lambda hidden, wide=False: F.linear(hidden, weight)


def _layers(product: Callable[[tuple[int, int]], Product]) -> Layers:
    return [[product(shape) for shape in _SHAPES] for _ in range(_LAYERS)]


def layer_seconds(layers: Layers, inputs: Mapping[int, torch.Tensor], threads: int) -> float:
    """Time of all products of a layer."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = [float("inf")] * len(_SHAPES)
    end = time.perf_counter() + _SECONDS
    while best[0] == float("inf") or time.perf_counter() < end:
        for layer in layers:
            for index, (product, (_, size)) in enumerate(zip(layer, _SHAPES, strict=True)):
                start = clock()
                product(inputs[size])
                best[index] = min(best[index], clock() - start)
    return sum(best)


if __name__ == "__main__":
    main()
