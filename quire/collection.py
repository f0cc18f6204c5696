"""Control of Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disables garbage collection inside the block, and exempts the objects that exist at its end from later
    collections.

    Importing creates hundreds of thousands of objects that stay. A tenth of its time went into scanning them, and
    afterward each generation's first collection had to scan all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
