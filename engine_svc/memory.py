"""Host memory for large and long-lived data: packed weights and KV caches."""

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
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_AHEAD_BYTES = 1 << 30  # over all layers
_PAUSE, _IDLE_PAUSE = 19, 3  # in multiples of the time a page took, while steps run and while idle
# Parameters of glibc's malloc.h and their values. The mmap threshold is the largest that glibc accepts.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MOST_BYTES = 512 << 20, 32 << 20


def zeros_when_touched(size: tuple[int, ...], dtype: torch.dtype, *, in_huge_pages: bool = True) -> torch.Tensor:
    """Zeros that the system provides on first touch, whereas torch would write gigabytes at once.

    Uses huge pages if available: a page fault per 4 KiB costs a prompt as much as its attention, and reading weights is
    faster by a third.

    Args:
        in_huge_pages: False for memory that is touched sparsely, since each touched place would take 2 MiB of zeros.

    Raises:
        MemoryError: the system does not provide this much memory.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(size, dtype=dtype)
    try:
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory would get small pages
    except OSError as error:
        raise MemoryError(f"{num_bytes / 2**30:.1f} GiB cannot be allocated at once") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        if in_huge_pages:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(size)


def touch_ahead(caches: Iterable[torch.Tensor], is_idle: Callable[[], bool]) -> None:
    """Gradually populates the first pages of the layers' KV caches in a thread, before steps touch them.

    A step waits for each page that it touches first: milliseconds if a virtual machine must get it from its host.
    Touching pages in advance takes a core from a running step for as long.

    Args:
        caches: tensors from `zeros_when_touched`, which are used from their beginning on.
        is_idle: returns whether no step is running, so that pages may be touched faster.
    """
    places = [(weakref.ref(each), each.nbytes) for each in caches if each.is_cpu and each.nbytes >= _HUGE_PAGE]
    if places and hasattr(mmap, "MADV_HUGEPAGE"):
        threading.Thread(target=_populate, args=(places, is_idle), name="pages ahead", daemon=True).start()


def _populate(places: Sequence[tuple[weakref.ref[torch.Tensor], int]], is_idle: Callable[[], bool]) -> None:
    """Populates the pages; holds a reference to a cache only for one page, and ends when a cache is gone."""
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
    """Populates a page, keeping its values. Returns False if the cache is gone or the kernel is too old."""
    if cache is None:
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    page = cache.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE + offset
    return not madvise(page, min(_HUGE_PAGE, cache.nbytes - offset), _MADV_POPULATE_WRITE)


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory instead of returning it to the system.

    Each operation of a step allocates and frees megabytes of hidden states: the page faults for them, including zeroing
    the pages, took a tenth of a step.
    """
    with contextlib.suppress(AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
