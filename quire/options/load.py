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
    """Loading of weights."""

    load_format: str = option(
        "auto", "Format of the weights, or what reads them: safetensors; fastsafetensors, runai_streamer and "
        "tensorizer (with the packages of these names); pt (torch.save files, of which only tensors are read); npcache "
        "(like pt, with numpy copies that load faster from then on); mistral (consolidated safetensors beside "
        "params.json); gguf (a llama.cpp file); bitsandbytes (like safetensors, for --quantization bitsandbytes); "
        "sharded_state and runai_streamer_sharded (files for each rank, written by `quire save-sharded-state`); dummy "
        "(no files; random weights); or auto, which takes whatever is there except pickles, such as torch.save files. "
        "Names registered by installed packages are accepted too. See docs/loading.md.",
        variables=("VLLM_TEST_FORCE_LOAD_FORMAT", "VLLM_USE_DUMMY_WEIGHTS"),
    )  # fmt: skip
    safetensors_load_strategy: str = option(
        "lazy", "lazy maps safetensors files into memory and reads what is needed; eager reads each file from "
        "beginning to end, which is faster on network file systems.", choices=("lazy", "eager"),
    )  # fmt: skip
    ignore_patterns: tuple[str, ...] = option(
        ("original/**/*",), "Name patterns of weight files that are neither downloaded nor read. Takes several words.",
        following=ANY_WORD,
    )  # fmt: skip
    pt_load_map_location: str = option(
        "cpu",
        "Device on which --load-format pt reads tensors: one for all, or, as JSON, a mapping from one device to "
        'another, such as {"cuda:1": "cuda:0"}.',
    )
    model_loader_extra_config: dict[str, Any] = option(
        {}, "Settings of the load format, as JSON; see docs/loading.md. Unknown ones are refused."
    )
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
