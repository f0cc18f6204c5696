"""The contract of a `--config-format`, and reading its files as data: no code of a checkpoint ever runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import StartupError


@dataclass(frozen=True)
class ConfigFormat:
    """A configuration file in the model's folder, and its conversion."""

    file: str
    as_huggingface: Callable[[dict[str, Any]], dict[str, Any]]  # converts its content to that of config.json


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        FileNotFoundError: the file does not exist.
        StartupError: it cannot be read, or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_hook=_special_float)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} cannot be read: it is not a JSON object.")
    return content


@contextlib.contextmanager
def converting(file: str) -> Iterator[None]:
    """Converts a file's content.

    Args:
        file: its name, for messages.

    Raises:
        StartupError: the content lacks something, or has something of another type.
    """
    try:
        yield
    except KeyError as error:
        raise StartupError(f"{file} lacks {error}.") from error
    except (TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise StartupError(f"{file} has an invalid value: {error}.") from error


def _special_float(content: dict[str, Any]) -> dict[str, Any] | float:
    """Transformers writes infinity, which JSON lacks, as `{"__float__": "Infinity"}`."""
    return float(content["__float__"]) if content.keys() == {"__float__"} else content
