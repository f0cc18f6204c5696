"""The folder with the weights."""

from __future__ import annotations

from pathlib import Path

from quire.model_folder import model_folder
from quire.options.model import ModelOptions

_PATTERNS = ("*.safetensors", "*.json")


def weights_folder(options: ModelOptions) -> Path:
    """The model's folder, downloaded when it is a hub name.

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    return model_folder(options.model, options.revision, options.download_dir, _PATTERNS)
