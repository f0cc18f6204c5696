"""Memory of the host for what is large and stays: packed weights, KV caches."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch

_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # of Linux 6.1 on
_PAUSE = 39  # times as long as a page's move took
# Of glibc's malloc.h, and what they are set to: as much as it takes for the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MOST_BYTES = 512 << 20, 32 << 20


def zeros_when_touched(size: tuple[int, ...], dtype: torch.dtype, *, in_huge_pages: bool = True) -> torch.Tensor:
    """Zeros that the system provides when they are first touched: torch would write gigabytes now.

    In huge pages where there are any: a fault for each 4 KiB costs a prompt as much as its attention does, and weights
    are read by a third faster.

    Args:
        in_huge_pages: from the first touch on; otherwise once `use_huge_pages` says so.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(size, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what is shared gets small pages
    with contextlib.suppress(OSError):  # a kernel without huge pages
        if in_huge_pages:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(size)


def use_huge_pages(tensors: Iterable[torch.Tensor]) -> None:
    """From now on, for what `zeros_when_touched` has made without; what was touched moves there little by little.

    A layer's KV cache has a part for each head. Warming up touches a little of every part: in huge pages that was a
    gigabyte of zeros for a model of 28 layers and 8 heads, a tenth of its start.
    """
    places = [(each.data_ptr(), each.nbytes) for each in tensors if each.is_cpu and each.nbytes >= _HUGE_PAGE]
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    madvise = _madvise()
    for address, num_bytes in places:
        madvise(address, num_bytes, mmap.MADV_HUGEPAGE)
    threading.Thread(target=_collapse, args=(places,), name="huge pages", daemon=True).start()


def _collapse(places: Sequence[tuple[int, int]]) -> None:
    """Has no tensor in hand: one that goes meanwhile is free, and what is there then keeps its values too.

    A page's move locks out whoever touches memory anew, and takes milliseconds where a virtual machine first has to get
    it from its host. So most of the time is left to the steps. A low priority would not do: who has the lock must not
    wait for those that it locks out.
    """
    madvise = _madvise()
    for address, num_bytes in places:
        first = -(-address // _HUGE_PAGE) * _HUGE_PAGE
        for page in range(first, address + num_bytes - _HUGE_PAGE + 1, _HUGE_PAGE):
            begin = time.perf_counter()
            madvise(page, _HUGE_PAGE, _MADV_COLLAPSE)  # one at a time: it ends at one of which nothing was touched
            time.sleep(_PAUSE * (time.perf_counter() - begin))


def _madvise() -> Callable[[int, int, int], int]:
    """The system's call for (address, bytes, advice): where it does not take it, nothing happens."""
    call = ctypes.CDLL(None).madvise
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return cast("Callable[[int, int, int], int]", call)


def keep_freed_memory() -> None:
    """Has malloc keep what is freed, instead of giving it back to the system.

    A step's hidden states are megabytes that come and go with each operation: a fault for each of their pages, which
    the system fills with zeros first, was a tenth of a step.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
