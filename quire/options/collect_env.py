"""Options of `quire collect-env`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class CollectEnvOptions:
    """Machine report."""

    json: bool = option(False, "Prints the report as JSON.")
