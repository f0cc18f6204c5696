"""Options of `quire save-sharded-state`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class SaveOptions:
    """Where each rank's parameters are written to."""

    output: str = option("sharded", "Folder to write to; it is made where it is missing.", metavar="PATH")
    max_file_size: int = option(5 * 2**30, "Bytes of weights in one file, about.", minimum=1)
