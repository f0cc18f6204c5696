"""How many rows and keys a program of the attention kernels works on at a time, and by how many warps.

It depends on the model and the kind of GPU alone, so that a sequence's result does not depend on its batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """What a program works on, and how it is compiled."""

    rows: int  # the heads of a group, for as many queries as there is room for
    keys: int  # that it attends to at a time
    warps: int
    # Three read keys and values one tile ahead, and two of them the block table alone: it has to be there first.
    stages: int = 3
    registers: int | None = None  # of a thread of prefill, at most; None: what the compiler takes


def has_room(capability: tuple[int, int]) -> bool:
    """Whether a program may have 227 KiB of shared memory, of which there are 99 on each GPU since Ampere."""
    return capability[0] in (9, 10)


def prefill_tiles(
    head_dim: int, dtype: torch.dtype, capability: tuple[int, int], *, are_copied: bool = False, for_both: bool = False
) -> Tiles:
    """Of prompts: what registers and shared memory hold (tests/engine_svc/kernels/test_kernels_compile.py).

    Args:
        are_copied: whole tiles are, by the GPU itself: then two programs fit a multiprocessor, and one computes weights
            while the other's products run (480 of 798 TFLOP/s on an H100, and 360 with one).
        for_both: sequences that decode have the same, so that both round alike.
    """
    if head_dim == 128 and are_copied:
        found = Tiles(128, 64, 8, 2, registers=128)
    elif head_dim <= 128:
        found = Tiles(128, 64, 4 if head_dim <= 64 else 8)
    elif head_dim <= 256:
        found = Tiles(64, 32, 4 if capability[0] in (9, 10) else 8)  # they have products of 64 rows for four warps
    elif has_room(capability) and dtype.itemsize == 2 and not for_both:  # 64 rows are products of Hopper's own
        found = Tiles(64, 32, 8, 2)
    else:
        found = Tiles(32, 32, 8, 3 if has_room(capability) else 2)
    if dtype == torch.float32:  # with no tensor cores: all is in registers
        found = Tiles(max(16, found.rows // 2), found.keys // 2, 8 if head_dim <= 256 else 4)
    return found


def decode_tiles(
    rows: int, prefill: Tiles, head_dim: int, capability: tuple[int, int], *, are_copied: bool = False
) -> Tiles:
    """Of sequences that have so many at most, the heads of a group for each new token: these, or as many of them as a
    tile of prompts has. Those of an H100 are the fastest that benchmarks/tiles.py tries.

    Args:
        are_copied: as for prefill_tiles.
    """
    rows = max(16, min(prefill.rows, 1 << (rows - 1).bit_length()))
    if rows == 16 and head_dim == 128 and has_room(capability) and prefill.keys == 64:
        return Tiles(rows, 64, 2, 2) if are_copied else Tiles(rows, 128, 4, 2)
    if head_dim > 256:  # four warps' registers hold no more results
        return Tiles(min(rows, 32), prefill.keys, 4, 3 if has_room(capability) else 2)
    return prefill._replace(rows=rows, warps=4)


def column_tiles(head_dim: int) -> tuple[int, int]:
    """Powers of two, as products need them, that hold a head: the greatest in it, and what is left; 0 if nothing is."""
    main = max(16, 1 << (head_dim.bit_length() - 1))
    rest = head_dim - main
    return main, max(16, 1 << (rest - 1).bit_length()) if rest > 0 else 0
