"""Progress of downloads from the Hugging Face hub: a bar on a terminal, and reports to a supervisor."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm

from quire.supervised import Stage, report


class DownloadBar(tqdm):
    """The hub library's progress bar: counts files, and the bytes of all files, whose total grows as they become
    known."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._bytes = options.get("unit") == "B"
        self._received = 0.0
        self._told = -1
        super().__init__(*args, **{"disable": None, **options})  # None: shown on terminals only

    def update(self, n: float | None = 1) -> bool | None:
        """Counts `n` more files or bytes."""
        self._received += n or 0
        if self._bytes and self.total:
            percent = min(100, int(100 * self._received / self.total))
            if percent != self._told:
                report(Stage.DOWNLOADING, percent / 100)
            self._told = percent
        shown: bool | None = super().update(n)
        return shown
