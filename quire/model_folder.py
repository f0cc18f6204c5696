"""Resolves a path, or a name on a hub, to a model's folder, or to a file that is a whole model."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path

from quire.errors import StartupError
from quire.gguf.files import is_gguf, model_in
from quire.gguf.place import chosen_file, split_name
from quire.hub import S3, Hub, Wanted

# Names of the bundled models, which are also their folders in the package demo_model.
DEMO_MODEL = "quire-demo"
_IN_THE_BOX = (DEMO_MODEL, "quire-demo-draft")  # the second is the draft model of the first
_CONFIGURATIONS = ("config.json", "params.json")


def model_folder(wanted: Wanted, hub: Hub) -> Path:
    """Returns the model's folder: a local path, the folder of a bundled model, or a download.

    Or returns its GGUF file: a local path, the only one in a folder without a configuration, or a download of
    `owner/name:file.gguf`.

    Raises:
        StartupError: there is no such folder, or the hub does not provide the model.
    """
    check_path(wanted.name)
    path = Path(wanted.name)
    if path.is_dir():
        return path if any((path / name).is_file() for name in _CONFIGURATIONS) else model_in(path) or path
    if is_gguf(path) and path.is_file():
        return path
    if wanted.name in _IN_THE_BOX:
        return Path(str(resources.files("demo_model") / wanted.name))
    repository, pattern = ("", None) if wanted.name.startswith(S3) else split_name(wanted.name)
    if not pattern:
        return hub.fetch(wanted)
    folder = hub.fetch(dataclasses.replace(wanted, name=repository, patterns=(pattern,)))
    return chosen_file(folder, pattern, wanted.name)


def check_path(model: str) -> None:
    """Checks that a model given as a path exists.

    Raises:
        StartupError: it can only be a path, and no such folder or file exists.
    """
    path = Path(model)
    if is_gguf(path) and (path.is_file() or ":" in model):
        return
    if (path.is_absolute() or model.startswith(".") or is_gguf(path)) and not path.is_dir():
        kind = "file" if is_gguf(path) else "folder"
        raise StartupError(f"No model at {model}: there is no such {kind}. Check the path.")
