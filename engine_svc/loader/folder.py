"""The folder with the weights, and its files."""

from __future__ import annotations

import json
from pathlib import Path

from quire.errors import StartupError
from quire.model_folder import model_folder
from quire.options.model import ModelOptions

_PATTERNS = ("*.safetensors", "*.json")
_INDEX = "model.safetensors.index.json"


def weights_folder(options: ModelOptions) -> Path:
    """The model's folder, downloaded when it is a hub name.

    Raises:
        StartupError: there is no such folder, or the hub does not give the model.
    """
    return model_folder(options.model, options.revision, options.download_dir, _PATTERNS)


def checkpoint_files(folder: Path) -> list[Path]:
    """The files that hold the weights, in order.

    Raises:
        StartupError: there are none, one is missing, or the index points outside of the folder.
    """
    index = folder / _INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            raise StartupError(f"{index} names {strange[0]!r}, which is not a file of the folder.")
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if missing := [file.name for file in files if not file.exists()]:
        raise StartupError(f"{folder} is not complete: {', '.join(missing[:3])} is missing.")
    if not files:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        hint = " Its .bin files are pickles, which can run code: convert them to safetensors." if pickled else ""
        raise StartupError(f"{folder} has no *.safetensors weights.{hint}")
    return files
