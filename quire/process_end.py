"""How a Quire process ends."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable


def run_to_end(work: Callable[[], None]) -> None:
    """Runs the process's work and ends it as the interpreter would, with two exceptions.

    Its memory is released without a final garbage collection, which scans all of it and takes a second if torch is
    imported. And if a daemon thread is left, the interpreter is not finalized: the thread may be in a library's code,
    where nothing can end it, and would abort the process when it returned from there.
    """
    status = 0

    def end() -> None:
        gc.freeze()
        if any(thread.daemon for thread in threading.enumerate()):
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # the reader may be gone
                    stream.flush()
            os._exit(status)

    atexit.register(end)  # handlers run in reverse order, so this one runs last
    try:
        work()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    except BaseException:
        status = 1
        raise
