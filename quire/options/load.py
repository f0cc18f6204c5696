"""Options of the loader."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

LOAD_FORMATS = ("auto", "safetensors", "dummy", "pt", "npcache", "mistral")


@dataclass(frozen=True)
class LoadOptions:
    """How weights are read."""

    load_format: str = option(
        "auto", "How weights are kept: safetensors; pt (files of torch.save, of which tensors alone are read); npcache "
        "(as pt, with copies of numpy, which load faster from then on); mistral "
        "(consolidated safetensors beside params.json); dummy (there are none, random ones are made); "
        "or auto, which takes what the folder has, but no pickles, as files of torch.save are. Names that an installed "
        "package registers are taken too.",
        variables=("VLLM_TEST_FORCE_LOAD_FORMAT",),
    )  # fmt: skip
    pt_load_map_location: str = option(
        "cpu",
        "On which device the tensors of --load-format pt are read: one for all, or, as JSON, which in place of which, "
        'such as {"cuda:1": "cuda:0"}.',
    )
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
