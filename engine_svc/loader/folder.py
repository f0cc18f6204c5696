"""Finds or downloads the folder with the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine_svc.loader.formats.registry import format_named
from quire.gguf.files import model_in
from quire.hub import Wanted
from quire.model_folder import model_folder
from quire.options.load import LoadOptions
from quire.options.model import ModelOptions

_CONFIGURATION = ("*.json",)
# Copies of all weights in Mistral's own layout.
_DOUBLES = "consolidated*"


def weights_folder(model: ModelOptions, load: LoadOptions) -> Path:
    """The model's folder or file, downloaded if `model` is a hub name.

    Raises:
        StartupError: there is no such folder, or the hub does not provide the model.
    """
    # `**/` means any number of folders including none, but the hub takes it as at least one.
    ignored = (*load.ignore_patterns, *(pattern.replace("**/", "") for pattern in load.ignore_patterns))
    patterns: Sequence[str] = (*format_named(load.load_format).patterns, *_CONFIGURATION)
    wanted = Wanted(model.model, model.revision, patterns, ignored)
    if load.load_format == "auto":
        folder = model_folder(replace(wanted, ignored=(*ignored, _DOUBLES)), model.hub)
        if folder.is_file() or any(folder.glob("*.safetensors")):
            return folder
    found = model_folder(wanted, model.hub)
    return (model_in(found) or found) if load.load_format == "gguf" and found.is_dir() else found
