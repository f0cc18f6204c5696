"""Options of the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.options.base import ANY_WORD, option

LOAD_FORMATS = (
    "auto", "safetensors", "fastsafetensors", "runai_streamer", "tensorizer", "pt", "npcache", "mistral", "gguf",
    "bitsandbytes", "sharded_state", "runai_streamer_sharded", "dummy",
)  # fmt: skip


@dataclass(frozen=True)
class LoadOptions:
    """How weights are read."""

    load_format: str = option(
        "auto", "How weights are kept, or what reads them: safetensors; fastsafetensors, runai_streamer and tensorizer "
        "(by the packages of these names); pt (files of torch.save, of which tensors alone are read); npcache (as pt, "
        "with copies of numpy, which load faster from then on); mistral (consolidated safetensors beside params.json); "
        "gguf (a file of llama.cpp's); bitsandbytes (as safetensors, for --quantization bitsandbytes); sharded_state "
        "and runai_streamer_sharded (files for each rank, by `quire save-sharded-state`); dummy (there are none, "
        "random ones are made); or auto, which takes what there is, but no pickles, as files of torch.save are. Names "
        "that an installed package registers are taken too. See "
        "docs/loading.md.",
        variables=("VLLM_TEST_FORCE_LOAD_FORMAT", "VLLM_USE_DUMMY_WEIGHTS"),
    )  # fmt: skip
    safetensors_load_strategy: str = option(
        "lazy", "lazy maps files of safetensors into memory and reads what is needed; eager reads each file from its "
        "beginning to its end, which is faster on network file systems.", choices=("lazy", "eager"),
    )  # fmt: skip
    ignore_patterns: tuple[str, ...] = option(
        ("original/**/*",), "Files of weights that are neither downloaded nor read, by patterns of their names. Takes "
        "several words.", following=ANY_WORD,
    )  # fmt: skip
    pt_load_map_location: str = option(
        "cpu",
        "On which device the tensors of --load-format pt are read: one for all, or, as JSON, which in place of which, "
        'such as {"cuda:1": "cuda:0"}.',
    )
    model_loader_extra_config: dict[str, Any] = option(
        {}, "Settings of the load format, as JSON; docs/loading.md has them. Unknown ones are refused."
    )
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
