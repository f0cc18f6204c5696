"""A checkpoint in several files, with an index that maps tensors to files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from quire.errors import StartupError


def tensor_files(folder: Path, index: str) -> Mapping[str, Path]:
    """The file of each tensor by name; empty if there is no index.

    Raises:
        StartupError: the index is invalid, or points outside of the folder.
    """
    path = folder / index
    if not path.exists():
        return {}
    try:
        weight_map: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = {str(tensor): str(name) for tensor, name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StartupError(f"{path} is not a checkpoint index: {type(error).__name__}: {error}") from error
    if strange := [name for name in names.values() if Path(name).name != name or name in ("", "..")]:
        raise StartupError(f"{path} names {strange[0]!r}, which is not a file in the folder.")
    return {tensor: folder / name for tensor, name in names.items()}


def shard_files(folder: Path, index: str) -> list[Path]:
    """The files that an index names, in order; empty if there is no index.

    Raises:
        StartupError: see `tensor_files`; or a file is missing.
    """
    files = sorted(set(tensor_files(folder, index).values()))
    if missing := [file.name for file in files if not file.exists()]:
        raise StartupError(
            f"{folder} is incomplete: {', '.join(missing[:3])} is missing ({index} names {len(files)} files)."
        )
    return files
