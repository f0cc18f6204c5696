"""Products with a layer's matrices, against torch's and memory's speed: `python -m benchmarks.products --rows 1 8 256`.

The layers are so many that none is in a cache when its turn comes. What a product takes is its shortest time over all
layers; with one thread, that thread's own, which neighbours on the machine do not reach.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from benchmarks.machine import heading
from engine_svc.native.levels import available_levels
from engine_svc.native.library import kernels
from engine_svc.ops.base import Product
from engine_svc.ops.native import NativeOps

# Outputs and inputs of the matrices of a layer of Qwen3-0.6B: attention's two, feed-forward's two.
_SHAPES = ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072))
_WEIGHTS = sum(outputs * size for outputs, size in _SHAPES)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_LAYERS, _SECONDS = 12, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", choices=available_levels(), default=available_levels())
    parser.add_argument("--types", nargs="+", choices=_BYTES, default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 256])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for level in arguments.levels:
        print(heading(level))
        print(f"{arguments.threads} threads; {_WEIGHTS / 1e6:.1f} million weights. GB/s: of weights read.\n")
        print("| type | rows | µs | GB/s | 10^9 operations/s | torch's µs | ratio |")
        print("|---|---|---|---|---|---|---|")
        for kind in arguments.types:
            with torch.inference_mode():
                report(level, kind, arguments.rows, arguments.threads)


def report(level: str, kind: str, rows: list[int], threads: int) -> None:
    """A type's rows of the table."""
    dtype = torch.bfloat16 if kind == "int8" else getattr(torch, kind)
    matrices = [[(torch.randn(shape) / 32).to(dtype) for shape in _SHAPES] for _ in range(_LAYERS)]
    loaded = kernels(level)
    loaded.set_threads(threads)
    ops = NativeOps(loaded)
    ours = [
        [ops.matrix(ops.quantize_rows(weight) if kind == "int8" else weight, None) for weight in layer]
        for layer in matrices
    ]
    theirs: list[list[Product]] = [[_linear(weight) for weight in layer] for layer in matrices]
    for count in rows:
        inputs = {size: torch.randn(count, size).to(dtype) for _, size in _SHAPES}
        seconds, peer = (layer_seconds(products, inputs, threads) for products in (ours, theirs))
        print(
            f"| {kind} | {count} | {seconds * 1e6:.0f} | {_WEIGHTS * _BYTES[kind] / seconds / 1e9:.1f} | "
            f"{2 * _WEIGHTS * count / seconds / 1e9:.0f} | {peer * 1e6:.0f} | {seconds / peer:.2f} |", flush=True,
        )  # fmt: skip


def _linear(weight: torch.Tensor) -> Product:
    return lambda hidden, wide=False: F.linear(hidden, weight)


def layer_seconds(layers: list[list[Product]], inputs: Mapping[int, torch.Tensor], threads: int) -> float:
    """What a layer's products take together."""
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
