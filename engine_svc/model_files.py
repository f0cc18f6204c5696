"""Where a model's configuration files are."""

from __future__ import annotations

from pathlib import Path

from quire.errors import StartupError
from quire.options.model import ModelOptions

_PATTERNS = ["config.json", "generation_config.json"]


def config_folder(model: ModelOptions) -> Path:
    """The folder with config.json: the model's own, or the hub cache's, filled where needed.

    Raises:
        StartupError: there is no such model.
    """
    # The hub knows no absolute paths; what is missing there is told where it is missed.
    if Path(model.model).is_dir() or Path(model.model).is_absolute():
        return Path(model.model)
    from huggingface_hub import snapshot_download  # slow to import, and not needed for folders

    try:
        folder = snapshot_download(
            model.model, revision=model.revision, cache_dir=model.download_dir, allow_patterns=_PATTERNS
        )
    except Exception as error:
        raise StartupError(
            f"No model {model.model!r}: neither a folder nor to be had from the hub ({error})."
        ) from error
    return Path(folder)
