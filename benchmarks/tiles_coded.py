"""Tiles that benchmarks/tiles.py tries for products with weights in codes and in int8."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from engine_svc.kernels.coded import AS_E4M3, WHOLE, CodedTiles, PackedCodes, coded_product, coded_tiles, dequantized
from engine_svc.kernels.int8 import Int8Tiles, int8_product, int8_tiles
from engine_svc.kernels.single_row import MatrixTiles
from engine_svc.kernels.single_row_coded import coded_row_product, coded_row_tiles

FORMS = ("int4", "fp8", "int8")
_GROUP = 128  # inputs with one scale, in int4


def random_codes(form: str, outputs: int, size: int, device: torch.device) -> PackedCodes:
    """A random matrix: int4 with scales for groups, fp8 and int8 with one for each output."""
    bits, group = (4, _GROUP) if form == "int4" else (8, size)
    codes = torch.randint(256, (1, outputs, size * bits // 8), device=device).to(torch.uint8)
    if form == "fp8":
        codes &= 0xF7  # without NaN
    scale = torch.rand(1, outputs, size // group, device=device)
    return PackedCodes(
        kind=int(AS_E4M3 if form == "fp8" else WHOLE), zero=1 << (bits - 1), bits=bits, codes=codes, scale=scale,
        offset=None, order=None, table=None, group=group, inputs=size, takes_int8=form == "int8",
    )  # fmt: skip


def code_candidates(
    form: str, hidden: torch.Tensor, around: dict[str, Any]
) -> Iterator[tuple[str, Callable[[PackedCodes], Any]]]:
    """Candidates for the product of given rows.

    Args:
        around: fused operations of the kernel for one row.
    """
    if len(hidden) == 1:
        now = coded_row_tiles(hidden.shape[1], 4 if form == "int4" else 8, int(WHOLE))
        for tile in itertools.product((2, 4, 8, 16), (1024, 2048, 4096), (1, 2, 4, 8)):
            tiles = MatrixTiles(*tile)
            least = 32 if form == "int4" else 16  # codes of a thread
            if tiles == now or least <= tiles.outputs * tiles.inputs // (32 * tiles.warps) <= 4 * least:
                name = "now: " * (tiles == now) + str(tile)
                yield name, partial(_row, hidden, tiles, around)
        return
    yield "dequantized", lambda weight: dequantized(weight, hidden.dtype)
    for rows, outputs, warps, stages in itertools.product((16, 32, 64), (32, 64, 128), (2, 4, 8), (3, 5, 7)):
        of_tile = CodedTiles(outputs, 128, warps, stages)
        if 64 <= 8 * outputs // warps <= 256 and rows >= min(64, len(hidden)) and rows < 2 * max(16, len(hidden)):
            name = "now: " * (of_tile == coded_tiles(False)) + f"{rows} rows, {outputs}, {warps} warps, {stages} stages"
            yield name, partial(_few, hidden, rows, of_tile)


def _row(hidden: torch.Tensor, tiles: MatrixTiles, around: dict[str, Any], weight: PackedCodes) -> None:
    coded_row_product(hidden, weight, tiles=tiles, **around)


def _few(hidden: torch.Tensor, rows: int, tiles: CodedTiles, weight: PackedCodes) -> None:
    coded_product(hidden, weight, tile=rows, tiles=tiles)


def int8_candidates(hidden: torch.Tensor, outputs: int) -> Iterator[tuple[str, Callable[[torch.Tensor], Any]]]:
    """Candidates for the product of given rows, which are quantized each time."""
    scale, now = torch.rand(outputs, device=hidden.device), int8_tiles(len(hidden))
    few = itertools.product((16, 32, 64), (32, 64, 128), (128, 256), (4,), (3, 5))
    many = itertools.product((128, 256), (64, 128, 256), (128,), (4, 8), (3, 4))
    for tile in few if len(hidden) <= 64 else many:
        tiles = Int8Tiles(*tile)
        if len(hidden) <= 64 and not (len(hidden) <= tiles.rows < 2 * max(16, len(hidden))):
            continue
        if tiles.rows * tiles.outputs <= 128 * 32 * tiles.warps:
            yield "now: " * (tiles == now) + str(tile), partial(_int8, hidden, scale, tiles)


def _int8(hidden: torch.Tensor, scale: torch.Tensor, tiles: Int8Tiles, weight: torch.Tensor) -> None:
    int8_product(hidden, weight, scale, None, False, tiles)
