"""Parses the choice of files in a hub repository: `owner/name:file.gguf`, or `owner/name:Q4_K_M`."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from quire.errors import StartupError
from quire.gguf.files import SUFFIX

_PART = re.compile(r"-\d{5}-of-(\d{5}\.gguf)$")


def split_name(model: str) -> tuple[str, str | None]:
    """The repository, and a pattern for the model's files in it; None if no files are named."""
    repository, colon, name = model.partition(":")
    if not colon:
        return model, None
    return repository, _PART.sub(r"-*-of-\1", name) if name.endswith(SUFFIX) else f"*{name}*{SUFFIX}"


def chosen_file(folder: Path, pattern: str, model: str) -> Path:
    """The matching file of a downloaded repository, or the first of several parts.

    Raises:
        StartupError: no file matches.
    """
    found = sorted(file for file in folder.rglob(f"*{SUFFIX}") if fnmatch(str(file.relative_to(folder)), pattern))
    if not found:
        raise StartupError(f"No model {model}: the repository has no file {pattern}.")
    return found[0]
