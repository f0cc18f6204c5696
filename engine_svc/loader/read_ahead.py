"""Has the operating system read the weights while the worker is still busy with other things."""

from __future__ import annotations

import contextlib
import os
import threading

from engine_svc.loader.formats.base import LoadFormat
from quire.errors import StartupError


def read_ahead(source: LoadFormat) -> None:
    """Returns at once; what is in memory already costs next to nothing, and what is wrong is left to the loader to say.

    The files come in the order in which they are loaded, so that where memory is scarce the pages that go are those of
    weights that were loaded already.
    """
    if hasattr(os, "posix_fadvise"):  # not on every system
        threading.Thread(target=_advise, args=(source,), name="read ahead", daemon=True).start()


def _advise(source: LoadFormat) -> None:
    with contextlib.suppress(OSError, StartupError):
        for file in source.files():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
