"""From a path or hub name to a folder with weights."""

from __future__ import annotations

from pathlib import Path

from quire.errors import StartupError
from quire.options.model import ModelOptions

_PATTERNS = ["*.safetensors", "*.json"]


def model_folder(options: ModelOptions) -> Path:
    """The model's folder, downloaded when it is a hub name.

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    path = Path(options.model)
    if path.is_dir():
        return path
    if path.is_absolute() or options.model.startswith("."):
        raise StartupError(f"No model at {options.model}: there is no such folder. Check the path.")
    from huggingface_hub import snapshot_download  # slow to import, and not needed for folders

    try:
        folder = snapshot_download(
            options.model, revision=options.revision, cache_dir=options.download_dir, allow_patterns=_PATTERNS
        )
    except Exception as error:
        raise StartupError(
            f"No model {options.model}: there is no such folder, and the hub did not give it ({error})."
        ) from error
    return Path(folder)
