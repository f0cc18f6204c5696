"""Memory of the host for what is large and stays: packed weights, KV caches."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap

import torch

_HUGE_PAGE = 2 << 20
# Of glibc's malloc.h, and what they are set to: as much as it takes for the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MOST_BYTES = 512 << 20, 32 << 20


def zeros_when_touched(size: tuple[int, ...], dtype: torch.dtype, *, in_huge_pages: bool = True) -> torch.Tensor:
    """Zeros that the system provides when they are first touched: torch would write gigabytes now.

    In huge pages where there are any: a fault for each 4 KiB costs a prompt as much as its attention does, and weights
    are read by a third faster.

    Args:
        in_huge_pages: not for what is touched a little in many places: each would take 2 MiB of zeros.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(size, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what is shared gets small pages
    with contextlib.suppress(OSError):  # a kernel without huge pages
        if in_huge_pages:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(size)


def keep_freed_memory() -> None:
    """Has malloc keep what is freed, instead of giving it back to the system.

    A step's hidden states are megabytes that come and go with each operation: a fault for each of their pages, which
    the system fills with zeros first, was a tenth of a step.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
