"""What the Transformers library reports while it loads a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import transformers


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Keeps Transformers from reporting weights that it did not expect, or lacks: callers judge that themselves."""
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
