"""From a path or a name on the Hugging Face hub to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from quire.errors import StartupError

# The model in the box: its name for users, and its folder in the package demo_model.
DEMO_MODEL = "quire-demo"


def model_folder(model: str, revision: str | None, download_dir: str | None, patterns: Sequence[str]) -> Path:
    """The model's folder: `model` itself, the one in the box, or a download when `model` is a hub name.

    Args:
        download_dir: where downloads are kept; the Hugging Face cache when None.
        patterns: of the files that are needed, such as "*.safetensors".

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    check_path(model)
    if Path(model).is_dir():
        return Path(model)
    if model == DEMO_MODEL:
        return Path(str(resources.files("demo_model") / DEMO_MODEL))
    # Slow to import, and not needed for folders.
    from huggingface_hub import snapshot_download

    from quire.download_bar import DownloadBar

    try:
        folder = snapshot_download(
            model, revision=revision, cache_dir=download_dir, allow_patterns=list(patterns), tqdm_class=DownloadBar
        )
    except Exception as error:
        raise StartupError(
            f"No model {model}: there is no such folder, and the hub did not give it ({error})."
        ) from error
    return Path(folder)


def check_path(model: str) -> None:
    """
    Raises:
        StartupError: it can only be a path, and there is no such folder.
    """
    path = Path(model)
    if (path.is_absolute() or model.startswith(".")) and not path.is_dir():
        raise StartupError(f"No model at {model}: there is no such folder. Check the path.")
