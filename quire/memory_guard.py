"""Refuses new requests while this process has nearly used up the memory of its control group.

The kernel would kill it at the limit, and with it the requests that are running.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import Callable

from quire.errors import Unavailable
from quire.host_memory import used_share

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.25
_MOST = 0.95  # fraction of the limit


class MemoryGuard:
    """Watches the process's memory while `run` runs. Does nothing where the control group has no limit."""

    def __init__(self, used: Callable[[], float] = used_share) -> None:
        """
        Args:
            used: returns the fraction of the limit that the process has used.
        """
        self._used = used
        self.is_short = False
        # Number of requests refused.
        self.num_refused = 0
        self._is_blind = False

    async def run(self) -> None:
        """Looks a few times a second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_CHECK_SECONDS)

    def look(self) -> None:
        """Updates `is_short`, and logs when it changes."""
        try:
            used = self._used()
        except OSError as error:  # such as too many open files
            if not self._is_blind:
                logger.warning("the memory in use is not known at the moment: %s", error.strerror)
            self._is_blind = True
            return
        self._is_blind = False
        was_short, self.is_short = self.is_short, used >= _MOST
        if self.is_short:
            _return_freed_memory()
        if self.is_short and not was_short:
            logger.warning("out of memory soon: %.0f %% of the limit in use; refusing new requests", 100 * used)
        elif was_short and not self.is_short:
            logger.info("%.0f %% of the memory limit in use; accepting new requests again", 100 * used)

    def admit(self) -> None:
        """
        Raises:
            Unavailable: a new request must be refused.
        """
        if self.is_short:
            self.num_refused += 1
            raise Unavailable("The server is short of memory; try again in a moment.")


def _return_freed_memory() -> None:
    """Returns memory to the system that the C library keeps for later: the process might look full for good."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
