"""From a path or a name on the Hugging Face hub to a folder, or to a file that is a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from quire.errors import StartupError
from quire.gguf.files import is_gguf, model_in
from quire.gguf.place import chosen_file, split_name

# The model in the box: its name for users, and its folder in the package demo_model.
DEMO_MODEL = "quire-demo"
_CONFIGURATIONS = ("config.json", "params.json")


def model_folder(model: str, revision: str | None, download_dir: str | None, patterns: Sequence[str]) -> Path:
    """The model's folder: `model` itself, the one in the box, or a download when `model` is a hub name.

    Or its file in GGUF: `model` itself, the only one in a folder that has no configuration, or a download of
    `owner/name:file.gguf`.

    Args:
        download_dir: where downloads are kept; the Hugging Face cache when None.
        patterns: of the files that are needed, such as "*.safetensors".

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    check_path(model)
    path = Path(model)
    if path.is_dir():
        return path if any((path / name).is_file() for name in _CONFIGURATIONS) else model_in(path) or path
    if is_gguf(path) and path.is_file():
        return path
    if model == DEMO_MODEL:
        return Path(str(resources.files("demo_model") / DEMO_MODEL))
    # Slow to import, and not needed for folders.
    from huggingface_hub import snapshot_download

    from quire.download_bar import DownloadBar

    repository, pattern = split_name(model)
    wanted = [pattern] if pattern else list(patterns)
    try:
        folder = snapshot_download(
            repository, revision=revision, cache_dir=download_dir, allow_patterns=wanted, tqdm_class=DownloadBar
        )
    except Exception as error:
        raise StartupError(
            f"No model {model}: there is no such folder, and the hub did not give it ({error})."
        ) from error
    return chosen_file(Path(folder), pattern, model) if pattern else Path(folder)


def check_path(model: str) -> None:
    """
    Raises:
        StartupError: it can only be a path, and there is no such folder or file.
    """
    path = Path(model)
    if is_gguf(path) and (path.is_file() or ":" in model):
        return
    if (path.is_absolute() or model.startswith(".") or is_gguf(path)) and not path.is_dir():
        kind = "file" if is_gguf(path) else "folder"
        raise StartupError(f"No model at {model}: there is no such {kind}. Check the path.")
