"""Reports the progress of loading weights."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from quire.supervised import Stage, report

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LINE_SECONDS = 10.0
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"


class LoadingProgress:
    """A progress bar on a terminal; under a supervisor, the supervisor's bar; else a log line now and then."""

    def __init__(self, *, told: bool) -> None:
        """
        Args:
            told: whether this rank reports; of several ranks only one does, or none if the user does not want it.
        """
        self._told = told
        self._percent = 0
        self._line_at = time.monotonic() + _LINE_SECONDS
        bar = told and sys.stderr.isatty()
        self._bar = tqdm(total=100, desc="Loading weights", bar_format=_FORMAT, disable=not bar)
        self._logs = told and not bar and not report(Stage.LOADING, 0.0)

    def update(self, fraction: float) -> None:
        """Sets the fraction done, from 0 to 1. Cheap if it is less than a percent more than before."""
        percent = int(100 * fraction)
        if percent <= self._percent:
            return
        self._bar.update(percent - self._percent)
        self._percent = percent
        if self._logs and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_SECONDS
            logger.info("loading weights: %d %%", percent)
        elif self._told and not self._logs:
            report(Stage.LOADING, percent / 100)

    def close(self) -> None:
        """Ends the report, after success or failure."""
        self._bar.close()


def with_progress(items: Iterable[T], total: int, told: bool) -> Iterator[T]:
    """Yields the items, of which there are `total`, and reports progress after each; see LoadingProgress."""
    report(Stage.LOADING)
    progress = LoadingProgress(told=told)
    try:
        for number, item in enumerate(items, 1):
            yield item
            progress.update(min(1.0, number / total))
    finally:
        progress.close()
