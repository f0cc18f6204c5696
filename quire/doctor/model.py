"""Checks the model's folder: whether it is complete, and fits in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quire.doctor.finding import Finding, fine, problem, warning
from quire.host_memory import available_bytes
from quire.hub import Wanted
from quire.model_folder import DEMO_MODEL, check_path, model_folder
from quire.serve.devices import count_gpus
from quire.serve.layout import StackOptions
from quire.tokenizer.vocabulary_files import WHOLE, has_tokenizer

_GIB = 2**30
_INDEX = "model.safetensors.index.json"
_SAFETENSORS, _PICKLES = ("*.safetensors",), ("*.bin", "*.pt", "*.pth")
_INDEXED = ("auto", "safetensors", "fastsafetensors", "runai_streamer", "bitsandbytes")
# Files by --load-format. Nothing is known of formats from plugins, or of weights elsewhere.
_WEIGHTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*_INDEXED, "sharded_state", "runai_streamer_sharded", "mistral"), _SAFETENSORS),
    **dict.fromkeys(("pt", "npcache"), _PICKLES), "gguf": ("*.gguf",),
}  # fmt: skip


def model(options: StackOptions) -> Iterator[Finding]:
    """Checks the model's folder, or its file.

    Raises:
        StartupError: there is no such folder or file.
    """
    name = options.model.model
    check_path(name)
    if not Path(name).exists() and name != DEMO_MODEL:
        yield _on_a_hub(name)
        return
    place = model_folder(Wanted(name), options.model.hub)
    if place.is_file():
        yield fine("model", f"{place}: {place.stat().st_size / _GIB:.2f} GiB")
        return
    if not options.engine.form.hf_config_path:
        yield from _configuration(place)
    load_format = options.engine.load.load_format
    patterns = _WEIGHTS.get(load_format, ())
    weights = sorted({file for pattern in patterns for file in place.glob(pattern)})
    missing = _missing_shards(place) if load_format in _INDEXED else []
    if missing:
        yield problem("weights", f"{place} lacks {', '.join(missing[:3])}, which its index names. Download it again.")
    elif patterns and not weights:
        yield problem("weights", f"{place} has no weights for --load-format {load_format} ({', '.join(patterns)}).")
    yield from _tokenizer(options, place)
    yield from _memory(options, sum(file.stat().st_size for file in weights))


def _tokenizer(options: StackOptions, folder: Path) -> Iterator[Finding]:
    if options.model.tokenizer is not None or options.gateway.skip_tokenizer_init:
        return
    has_tekken = (folder / "tekken.json").exists()
    if options.model.tokenizer_mode == "mistral":
        name, is_there = "tekken.json", has_tekken
    else:
        name, is_there = WHOLE, has_tekken or has_tokenizer(folder)
    if not is_there:
        yield problem("tokenizer", f"{folder} has no {name}. Name another folder with --tokenizer.")


def _on_a_hub(name: str) -> Finding:
    if os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE"):
        return warning(
            "model", f"{name} is not a folder, and HF_HUB_OFFLINE allows no download, so it must be in the cache."
        )
    return fine("model", f"{name} is not a folder: it is downloaded at startup unless it is in the cache")


def _configuration(folder: Path) -> Iterator[Finding]:
    file = next((folder / name for name in ("config.json", "params.json") if (folder / name).exists()), None)
    if file is None:
        yield problem("model", f"{folder} has neither config.json nor params.json, so it is not a model's folder.")
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        names = config.get("architectures") or [file.name]
    except (ValueError, RecursionError, AttributeError) as error:
        yield problem("model", f"{file} is not a JSON object: {error}. Download it again.")
        return
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        yield fine("model", f"{folder}: {', '.join(names)}")
    else:
        yield problem("model", f"{file}: architectures must be a list of names, not {names!r}.")


def _missing_shards(folder: Path) -> list[str]:
    """Names of files that the index of the weights lists but the folder lacks."""
    index = folder / _INDEX
    if not index.exists():
        return []
    try:
        names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return [f"a readable {index.name}"]
    return sorted(name for name in names if not (folder / name).exists())


def _memory(options: StackOptions, weight_bytes: int) -> Iterator[Finding]:
    """Compares the weights and KV cache of all engines on a CPU with the free memory."""
    if options.engine.kernels.device == "cuda" or (options.engine.kernels.device == "auto" and count_gpus()):
        return
    cache = options.engine.cache.kv_cache_memory_bytes or 0
    needed, available = len(options.ranks.ranks) * (weight_bytes + cache), available_bytes()
    told = f"{needed / _GIB:.2f} GiB are needed for weights and KV cache, and {available / _GIB:.2f} GiB are free"
    if needed > available:
        yield problem(
            "memory", f"{told}. Reduce --data-parallel-size or --kv-cache-memory-bytes, or use --quantization."
        )
    else:
        yield fine("memory", told)
