"""Options of `quire collect-env`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class CollectEnvOptions:
    """How the machine is described."""

    json: bool = option(False, "Prints it as JSON.")
