"""Options of `quire save-sharded-state`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class SaveOptions:
    """Output of sharded weights."""

    output: str = option("sharded", "Folder to write to; created if missing.", metavar="PATH")
    max_file_size: int = option(5 * 2**30, "Approximate maximum size of a file of weights in bytes.", minimum=1)
