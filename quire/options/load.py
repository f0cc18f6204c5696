"""Options of the loader."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

LOAD_FORMATS = ("auto", "safetensors", "dummy")


@dataclass(frozen=True)
class LoadOptions:
    """How weights are read."""

    load_format: str = option(
        "auto", "How weights are kept: safetensors; dummy (there are none, random ones are made); or auto, which takes "
        "what the folder has. Names that an installed package registers are taken too.",
        variables=("VLLM_TEST_FORCE_LOAD_FORMAT",),
    )  # fmt: skip
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
