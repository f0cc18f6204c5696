"""How far a download from the Hugging Face hub is: a bar on a terminal, and reports to a supervisor."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm

from quire.supervised import Stage, report


class DownloadBar(tqdm):
    """What the hub library counts with: files, and the bytes of all of them, whose total grows as it learns of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._bytes = options.get("unit") == "B"
        self._received = 0.0
        self._told = -1
        super().__init__(*args, **{"disable": None, **options})  # None: shown on terminals only

    def update(self, n: float | None = 1) -> bool | None:
        """Counts further files or bytes."""
        self._received += n or 0
        if self._bytes and self.total:
            percent = min(100, int(100 * self._received / self.total))
            if percent != self._told:
                report(Stage.DOWNLOADING, percent / 100)
            self._told = percent
        shown: bool | None = super().update(n)
        return shown
