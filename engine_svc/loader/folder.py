"""The folder with the weights."""

from __future__ import annotations

from pathlib import Path

from engine_svc.loader.formats.registry import format_named
from quire.gguf.files import model_in
from quire.model_folder import model_folder
from quire.options.load import LoadOptions
from quire.options.model import ModelOptions

_CONFIGURATION = ("*.json",)


def weights_folder(model: ModelOptions, load: LoadOptions) -> Path:
    """The model's folder, downloaded when it is a hub name; or its file.

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    patterns = (*format_named(load.load_format).patterns, *_CONFIGURATION)
    found = model_folder(model.model, model.revision, model.download_dir, patterns)
    return (model_in(found) or found) if load.load_format == "gguf" and found.is_dir() else found
