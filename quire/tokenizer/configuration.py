"""Reads tokenizer_config.json and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import StartupError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        StartupError: it is not an object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} must hold a JSON object.")
    return content


def fields_of(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file of the model; empty where there is none: what needs the file says what is wrong."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def text_of(token: Any) -> str | None:
    """The text of a token, which is given as its text or as an object with properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration names: name → text."""
    found = {name: text for name in _NAMED_TOKENS if (text := text_of(config.get(name))) is not None}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {name: text for name, token in extra.items() if (text := text_of(token)) is not None}
    return found


def nameless_tokens(config: Mapping[str, Any]) -> list[Any]:
    """The special tokens that a configuration lists without names."""
    extra = config.get("extra_special_tokens")
    return [*(config.get("additional_special_tokens") or ()), *(extra if isinstance(extra, list) else ())]
