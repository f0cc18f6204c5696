"""Makes the operating system read the weights while the worker is still busy with other work."""

from __future__ import annotations

import contextlib
import os
import threading

from engine_svc.loader.formats.base import LoadFormat
from quire.errors import StartupError


def read_ahead(source: LoadFormat) -> None:
    """Starts reading in a thread and returns at once. Files already in memory cost almost nothing.

    Errors are left for the loader to report. Files are read in the order in which they are loaded, so that if memory is
    scarce, pages of weights that were already loaded are evicted first.
    """
    if hasattr(os, "posix_fadvise"):  # not on every system
        threading.Thread(target=_advise, args=(source,), name="read ahead", daemon=True).start()


def _advise(source: LoadFormat) -> None:
    with contextlib.suppress(OSError, StartupError):
        for file in source.files():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
