"""Chooses the format to read a folder's weights with: a built-in one, or one from an installed package."""

from __future__ import annotations

import inspect
from pathlib import Path

from engine_svc.loader.formats.base import LoadFormat
from quire.errors import StartupError
from quire.gguf.files import is_gguf
from quire.options.load import LOAD_FORMATS, LoadOptions
from quire.registry import load_entry, load_plugin, registry

_FLAG, _PLUGINS = "--load-format", "quire.load_formats"

# Classes are named by strings, so that only the dependencies of the chosen one are imported.
FORMATS = registry(_FLAG, LOAD_FORMATS, {
    "auto": "engine_svc.loader.formats.safetensors_files:Safetensors",
    "safetensors": "engine_svc.loader.formats.safetensors_files:Safetensors",
    "dummy": "engine_svc.loader.formats.dummy:Dummy",
    "pt": "engine_svc.loader.formats.torch_files:TorchFiles",
    "bitsandbytes": "engine_svc.loader.formats.safetensors_files:Safetensors",
    "mistral": "engine_svc.loader.formats.consolidated:Consolidated",
    "sharded_state": "engine_svc.loader.formats.sharded_state:ShardedState",
    "gguf": "engine_svc.loader.formats.gguf_file:GgufFile",
    "tensorizer": "engine_svc.loader.formats.tensorizer_file:Tensorizer",
    "runai_streamer": "engine_svc.loader.formats.runai_files:RunaiStreamer",
    "runai_streamer_sharded": "engine_svc.loader.formats.runai_files:RunaiStreamerSharded",
    "fastsafetensors": "engine_svc.loader.formats.fastsafetensors_files:FastSafetensors",
    "npcache": "engine_svc.loader.formats.npcache:NumpyCache",
})  # fmt: skip


def format_named(name: str) -> type[LoadFormat]:
    """The class with a name: a built-in one, or one from a package with an entry point `quire.load_formats`.

    Raises:
        StartupError: there is none.
    """
    found = load_entry(_FLAG, FORMATS, name) if name in FORMATS else load_plugin(_FLAG, FORMATS, _PLUGINS, name)
    if not (isinstance(found, type) and issubclass(found, LoadFormat)) or inspect.isabstract(found):
        raise StartupError(
            f"{_FLAG} {name}: {found!r} must be a class that derives from engine_svc.loader.formats.base.LoadFormat "
            "and implements its methods."
        )
    return found


def create_format(folder: Path, options: LoadOptions) -> LoadFormat:
    """Creates the format that the options name for a model's folder or file.

    Raises:
        StartupError: there is no format of that name, or it cannot be used here.
    """
    name = _detect(folder) if options.load_format == "auto" else options.load_format
    return format_named(name)(folder, options)


def _detect(folder: Path) -> str:
    """The format that `auto` stands for."""
    if is_gguf(folder):
        return "gguf"
    weights = {file.name.startswith("consolidated") for file in folder.glob("*.safetensors")}
    return "mistral" if weights == {True} and (folder / "params.json").exists() else "safetensors"
