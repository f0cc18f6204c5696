"""Makes the system provide memory for the weights while the worker is still busy with other work."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterator

from engine_svc.loader.formats.base import LoadFormat
from quire.errors import StartupError
from quire.serve.devices import has_driver

_CHUNK = 16 << 20
_MOST_BYTES = 2 << 30  # where this helps, there is no time for more


@contextlib.contextmanager
def memory_ahead(source: LoadFormat, device: str) -> Iterator[None]:
    """While the context is active, a thread touches as much memory as the weights' files have; then it is freed.

    A virtual machine's host provides memory when the machine first touches it, at half a gigabyte a second. For a small
    model, loading the weights would wait for that longer than for anything else. Memory that was just freed is readily
    available to the next allocation.

    Args:
        source: of the weights; its errors are left for the loader to report.
        device: the value of --device. Nothing is done for weights on a GPU.
    """
    if device == "cuda" or (device == "auto" and has_driver()) or not hasattr(mmap, "MADV_HUGEPAGE"):
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_touch, args=(source, stop), name="memory ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _touch(source: LoadFormat, stop: threading.Event) -> None:
    with contextlib.suppress(OSError, StartupError):
        num_bytes = sum(file.stat().st_size for file in source.files())
        free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE  # must not evict files that were read ahead
        chunks = min(num_bytes, free // 2, _MOST_BYTES) // _CHUNK
        if not chunks:
            return
        with mmap.mmap(-1, chunks * _CHUNK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)  # as for the weights
            for start in range(0, len(memory), _CHUNK):
                if stop.is_set():
                    break
                piece = (ctypes.c_char * _CHUNK).from_buffer(memory, start)
                ctypes.memset(piece, 0, _CHUNK)  # releases the GIL
                del piece  # otherwise the mapping cannot be closed
