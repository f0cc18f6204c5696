"""The `--config` file: YAML with one key per option, named like the flag."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from quire.options.base import OptionField
from quire.options.nearest import nearest_with_meaning
from quire.options.spelling import spell_out
from quire.options.vllm.translation import answer_to, heed


def load_config_file(path: str, fields: Mapping[str, OptionField], tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns option name (with underscores) → value.

    Keys that are flags of vLLM are translated to the options that they act as. A key without a value (`null`, which
    --show-config prints for unset options) is ignored.

    Args:
        fields: the command's options by name.
        tell: called with a line for each key that is translated, or has no effect.

    Raises:
        click.UsageError: the file cannot be read, or has an unknown key.
    """
    import yaml  # slow to import, and rarely needed

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise click.UsageError(f"--config {path}: expected keys and values, such as `max-model-len: 8192`.")
    values: dict[str, Any] = {}
    arguments: list[str] = []
    names = {alias.lstrip("-"): name for name, field in fields.items() for alias in field.metadata["aliases"]}
    for given, value in content.items():
        key = str(given).lstrip("-").replace("_", "-")
        name = names.get(key, key.replace("-", "_"))
        if name in fields:
            values |= {name: value} if value is not None else {}
        else:
            arguments += _translated(key, value, path, fields, tell)
    return {**_values(arguments, fields), **values}


def _translated(
    key: str, value: Any, path: str, fields: Mapping[str, OptionField], tell: Callable[[str], None]
) -> list[str]:
    """Translates a key that is no option to arguments.

    Raises:
        click.UsageError: the key is refused, or unknown.
    """
    answer = answer_to(key, [field.flag for field in fields.values()])
    if answer is None:
        hint = nearest_with_meaning(key, {field.flag[2:]: field.metadata["help"] for field in fields.values()})
        raise click.UsageError(f"--config {path}: {key} is not an option of this command.{hint}")
    if value is False or value is None:
        return []  # equivalent to leaving it out
    text = value if isinstance(value, str) else json.dumps(value)
    return heed(answer, f"--config {path}: {key}", key, text, tell)


def _values(arguments: list[str], fields: Mapping[str, OptionField]) -> dict[str, Any]:
    """Option name → value, for translated arguments."""
    spelled = iter(spell_out(arguments, [field.flag for field in fields.values() if field.has_keys]))
    values: dict[str, Any] = {}
    for flag in spelled:
        name = flag.removeprefix("--").replace("-", "_")
        if name in fields and fields[name].type is not bool:
            values[name] = next(spelled)
        else:
            values[name.removeprefix("no_")] = not name.startswith("no_")
    return values
