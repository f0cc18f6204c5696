"""The `--config` file: YAML with one key per option, named as the flag is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml


def load_config_file(path: str, known: Iterable[str]) -> dict[str, Any]:
    """Option name (with underscores) → value.

    Raises:
        click.UsageError: the file cannot be read, or has a key that is no option.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise click.UsageError(f"--config {path}: expected keys and values, such as `max-model-len: 8192`.")
    names = set(known)
    return {_known_name(str(key), names, path): value for key, value in content.items()}


def _known_name(key: str, names: set[str], path: str) -> str:
    name = key.lstrip("-").replace("-", "_")
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0].replace('_', '-')}?" if close else ""
    raise click.UsageError(f"--config {path}: {key} is no option of this command.{hint}")
