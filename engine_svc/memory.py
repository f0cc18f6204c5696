"""Memory of the host for what is large and stays: packed weights, KV caches."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

_HUGE_PAGE = 2 << 20
_MADV_POPULATE_WRITE = 23  # of Linux 5.14 on
_AHEAD_BYTES = 1 << 30  # of all layers
_PAUSE, _IDLE_PAUSE = 19, 3  # times as long as a page took, while steps run and while none does
# Of glibc's malloc.h, and what they are set to: as much as it takes for the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MOST_BYTES = 512 << 20, 32 << 20


def zeros_when_touched(size: tuple[int, ...], dtype: torch.dtype, *, in_huge_pages: bool = True) -> torch.Tensor:
    """Zeros that the system provides when they are first touched: torch would write gigabytes now.

    In huge pages where there are any: a fault for each 4 KiB costs a prompt as much as its attention does, and weights
    are read by a third faster.

    Args:
        in_huge_pages: not for what is touched a little in many places: each would take 2 MiB of zeros.

    Raises:
        MemoryError: the system does not provide so much.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(size, dtype=dtype)
    try:
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what is shared gets small pages
    except OSError as error:
        raise MemoryError(f"{num_bytes / 2**30:.1f} GiB at a time cannot be had") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        if in_huge_pages:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(size)


def touch_ahead(caches: Iterable[torch.Tensor], is_idle: Callable[[], bool]) -> None:
    """Has the system provide the first pages of the layers' KV caches little by little, before steps touch them.

    A step waits for what it touches first: milliseconds for each page where a virtual machine has to get it from its
    host. Who touches it meanwhile takes a core from the step for as long.

    Args:
        caches: of `zeros_when_touched`, used from their beginning on.
        is_idle: whether no step runs, so that pages may follow each other faster.
    """
    places = [(weakref.ref(each), each.nbytes) for each in caches if each.is_cpu and each.nbytes >= _HUGE_PAGE]
    if places and hasattr(mmap, "MADV_HUGEPAGE"):
        threading.Thread(target=_populate, args=(places, is_idle), name="pages ahead", daemon=True).start()


def _populate(places: Sequence[tuple[weakref.ref[torch.Tensor], int]], is_idle: Callable[[], bool]) -> None:
    """Has a cache in hand for a page at a time, so that none stays for it, and ends when one is gone."""
    for offset in range(0, _AHEAD_BYTES // len(places), _HUGE_PAGE):
        for cache, num_bytes in places:
            if offset >= num_bytes:
                continue
            begin = time.perf_counter()
            if not _populate_page(cache(), offset):
                return
            took = time.perf_counter() - begin
            time.sleep((_IDLE_PAUSE if is_idle() else _PAUSE) * took)


def _populate_page(cache: torch.Tensor | None, offset: int) -> bool:
    """What is there keeps its values. False where the cache is gone, or the system an older one."""
    if cache is None:
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    page = cache.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE + offset
    return not madvise(page, min(_HUGE_PAGE, cache.nbytes - offset), _MADV_POPULATE_WRITE)


def keep_freed_memory() -> None:
    """Has malloc keep what is freed, instead of giving it back to the system.

    A step's hidden states are megabytes that come and go with each operation: a fault for each of their pages, which
    the system fills with zeros first, was a tenth of a step.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
