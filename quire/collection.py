"""Python's collector of reference cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """What runs inside is not looked through for cycles, and what is there at its end never is.

    Importing makes hundreds of thousands of objects that stay. A tenth of its time went into looking at them, and after
    it each generation's first collection had all of them to look at.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
