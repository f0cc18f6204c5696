"""The terminal output of `quire serve`: a line per service while it starts, live on a terminal; then warnings."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable
from typing import TextIO

from quire.supervised import Report, Stage

_BAR_CELLS = 24
_REPEAT_SECONDS = 10.0  # between two lines about the same stage without a terminal


class Console:
    """Owns the terminal: everything written to it goes through `write`, above the live lines.

    On a terminal, the lines of all services are at the bottom and redrawn as they change; elsewhere there is one line
    for each event. After `close`, `write` just writes.
    """

    def __init__(self, stream: TextIO, reports: Iterable[Report], *, live: bool) -> None:
        """
        Args:
            reports: the initial stage of each service, in the order of the lines.
            live: whether the stream is a terminal.
        """
        self._stream = stream
        self._live = live
        self._open = True
        self._start = time.monotonic()
        self._reports = {report.name: report for report in reports}
        self._ready_after: dict[str, float] = {}
        self._told: dict[str, tuple[Stage, float]] = {}  # name → last stage that was printed, and when
        self._drawn = 0  # number of live lines drawn
        self.refresh()

    def report(self, report: Report) -> None:
        """Shows a service's progress."""
        self._reports[report.name] = report
        if report.stage is Stage.READY:
            self._ready_after.setdefault(report.name, time.monotonic() - self._start)
        if not self._open:
            return
        if self._live:
            self.refresh()
        elif self._is_news(report):
            self._told[report.name] = (report.stage, time.monotonic())
            self.write(f"{report.name}: {self._describe(report)}\n")

    def _is_news(self, report: Report) -> bool:
        stage, when = self._told.get(report.name, (None, 0.0))
        if report.stage in (Stage.STARTING, Stage.FAILED):
            return False  # the first goes without saying, the other is reported once, at the end
        if report.stage is not stage and report.stage is not Stage.WAITING:
            return True
        return report.stage is not Stage.READY and time.monotonic() - (when or self._start) >= _REPEAT_SECONDS

    def write(self, text: str) -> None:
        """Writes text that ends with a newline; log handlers use this object as their stream."""
        self._draw(text)

    def flush(self) -> None:
        """Does nothing, as `write` flushes; part of the stream interface."""

    def refresh(self) -> None:
        """Redraws the live lines, to update the elapsed time."""
        if self._live and self._open:
            self._draw()

    def close(self) -> None:
        """Removes the live lines."""
        self._open = False
        self._draw()

    def _draw(self, text: str = "") -> None:
        """Writes text with the live lines below it, in a single write, as anything else flickers."""
        above = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""  # cursor up, clear to the end
        lines: list[str] = []
        if self._live and self._open:
            width = shutil.get_terminal_size().columns - 1
            lines = [f"{self._line(report)[:width]}\n" for report in self._reports.values()]
        self._drawn = len(lines)
        with contextlib.suppress(OSError):  # a terminal that was closed; the services go on without it
            self._stream.write("".join((above, text, *lines)))
            self._stream.flush()

    def _line(self, report: Report) -> str:
        width = max(map(len, self._reports))
        bar = ""
        if report.fraction is not None and report.stage is not Stage.READY:
            full = round(report.fraction * _BAR_CELLS)
            bar = f"{'█' * full}{'░' * (_BAR_CELLS - full)} "
        return f"  {report.name:<{width}}  {bar}{self._describe(report)}"

    def _describe(self, report: Report) -> str:
        if report.stage is Stage.READY:
            return f"ready after {self._ready_after[report.name]:.1f} s"
        if report.stage is Stage.FAILED:
            return "failed"
        if report.stage is Stage.WAITING:
            return f"waiting: {report.message}"
        share = "" if report.fraction is None else f" {report.fraction:.0%}"
        seconds = f"  {time.monotonic() - self._start:.0f} s" if self._live else ""
        return f"{report.stage}{share}{seconds}"
