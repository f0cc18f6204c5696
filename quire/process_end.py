"""How a process of Quire ends."""

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
    """Does what a process is for, and ends it as the interpreter would, but for two things.

    Its memory goes back as it is: else the interpreter looks all of it through for cycles on its way out, a second's
    work where torch is imported. And where a daemon thread is left, the interpreter is not taken apart: the thread may
    be in a library's code, which nothing can end, and would abort the process as it comes back from there.
    """
    status = 0

    def end() -> None:
        gc.freeze()
        if any(thread.daemon for thread in threading.enumerate()):
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    stream.flush()
            os._exit(status)

    atexit.register(end)  # the first is called last
    try:
        work()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    except BaseException:
        status = 1
        raise
