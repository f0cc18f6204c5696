"""Options of the loader."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class LoadOptions:
    """How weights are read."""

    load_format: str = option(
        "auto", "auto and safetensors read weights; dummy makes random ones.", choices=("auto", "safetensors", "dummy")
    )
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
