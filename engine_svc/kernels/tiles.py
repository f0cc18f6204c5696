"""How many rows and keys a program of the attention kernels works on at a time, and with how many warps.

This depends only on the model and the kind of GPU, so that a sequence's result does not depend on its batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """The tile that a program works on, and how it is compiled."""

    rows: int  # the heads of a group, for as many queries as fit
    keys: int  # attended to at a time
    warps: int
    # Three stages load keys and values one tile ahead; two only the block table, which must be there first.
    stages: int = 3


def has_room(capability: tuple[int, int]) -> bool:
    """Whether a program can have 227 KiB of shared memory; every GPU since Ampere has at least 99 KiB."""
    return capability[0] in (9, 10)


def prefill_tiles(
    head_dim: int, dtype: torch.dtype, capability: tuple[int, int], *, are_copied: bool = False, for_both: bool = False
) -> Tiles:
    """The tiles of prefill: as large as registers and shared memory allow.

    See tests/engine_svc/kernels/test_kernels_compile.py.

    Args:
        are_copied: the GPU itself copies whole tiles. Then two programs fit on a multiprocessor, and one computes
            weights while the other's products run (487 · 10^12 operations a second on an H200, by addresses 406).
        for_both: decode uses the same tiles, so that both round identically.
    """
    if head_dim == 128 and are_copied:
        found = Tiles(64 if for_both else 128, 64, 4, 2)
    elif head_dim <= 128:
        found = Tiles(128, 64, 4 if head_dim <= 64 else 8)
    elif head_dim <= 256:
        found = Tiles(64, 32, 4 if capability[0] in (9, 10) else 8)  # these have 64-row products for four warps
    elif has_room(capability) and dtype.itemsize == 2 and not for_both:  # 64 rows use Hopper's own products
        found = Tiles(64, 32, 8, 2)
    else:
        found = Tiles(32, 32, 8, 3 if has_room(capability) else 2)
    if dtype == torch.float32:  # without tensor cores, everything is in registers
        found = Tiles(max(16, found.rows // 2), found.keys // 2, 8 if head_dim <= 256 else 4)
    return found


def expansion_tiles(dtype: torch.dtype, capability: tuple[int, int]) -> Tiles:
    """The tiles of prompts of compressed attention with plain keys and values, see expanded_prefill."""
    if dtype == torch.float32:
        return Tiles(32, 16, 8, 2)
    return Tiles(128, 64, 8, 3) if has_room(capability) else Tiles(64, 32, 4, 2)


def decode_tiles(
    rows: int, prefill: Tiles, head_dim: int, capability: tuple[int, int], *, are_copied: bool = False
) -> Tiles:
    """The tiles of decode. Those for an H100 are the fastest that benchmarks/tiles.py tries.

    Args:
        rows: the most rows of a sequence: the heads of a group for each new token. A tile has no more rows than one of
            `prefill`.
        prefill: the tiles of prefill.
        are_copied: as for prefill_tiles.
    """
    rows = max(16, min(prefill.rows, 1 << (rows - 1).bit_length()))
    if rows == 16 and head_dim == 128 and has_room(capability) and prefill.keys == 64:
        return Tiles(rows, 64, 2, 2) if are_copied else Tiles(rows, 128, 4, 2)
    if head_dim > 256:  # the results of more rows do not fit in four warps' registers
        rows = min(rows, 32)
        if has_room(capability):
            return Tiles(rows, prefill.keys, 4)
        return Tiles(rows, prefill.keys, 8 if rows == 32 else 4, 2)  # a cache of bytes takes registers, too
    return prefill._replace(rows=rows, warps=4)


def column_tiles(head_dim: int) -> tuple[int, int]:
    """Splits a head into powers of two, as products need them: the largest within it, and one for the rest, or 0."""
    main = max(16, 1 << (head_dim.bit_length() - 1))
    rest = head_dim - main
    return main, max(16, 1 << (rest - 1).bit_length()) if rest > 0 else 0


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
