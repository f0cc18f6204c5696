"""Translates alternative spellings of options on the command line to the one that click parses.

`--max_model_len` is `--max-model-len`. A key of an option that is a JSON object may be a flag of its own:
`--speculative-config.method ngram` is `--speculative-config '{"method": "ngram"}'`, added to what the object has; a
key with a plus sign adds to the list that it has: `--json.names+ a`, `--json.names+=b,c`. `-O3`, `-O 3`, `-O.level=3`
and `-O={"level": 3}` are `--compilation-config.level 3`, and so are those with `-cc` for `-O`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import click

_LEVELS = "--compilation-config"


def spell_out(arguments: list[str], objects: Collection[str]) -> list[str]:
    """The arguments with dashes instead of underscores in flags, and with the keys of each object merged into one
    value.

    Args:
        objects: flags of the options that are JSON objects.

    Raises:
        click.UsageError: a key has no value, or is inside something that is not an object.
    """
    spelled: list[str] = []
    parts: dict[str, list[tuple[str, str]]] = {}  # object's flag → (key, value) pairs; an empty key is the object
    remaining = iter(arguments)
    for word in remaining:
        if word == "--":
            spelled += [word, *remaining]
            break
        flag, equals, value = _split(word)
        head, _, key = flag.partition(".")
        if head not in objects:
            spelled.append(flag + equals + value)
        else:
            parts.setdefault(head, []).append((key, value if equals else _next(remaining, flag)))
    given = [word for head, values in parts.items() for word in (head, _merged(head, values))]
    return [*given, *spelled]


def spell_out_levels(arguments: Sequence[str]) -> list[str]:
    """The arguments with --compilation-config instead of `-O` and `-cc`, and --attention-config instead of `-ac`."""
    spelled: list[str] = []
    for index, word in enumerate(arguments):
        if word == "--":
            return spelled + list(arguments[index:])
        level = re.fullmatch(r"-O(\d+)|-O=(\d+)", word)
        if level:
            spelled.append(f"{_LEVELS}.level={level[1] or level[2]}")
        elif word == "-O" and re.fullmatch(r"\d+", arguments[index + 1] if index + 1 < len(arguments) else ""):
            spelled.append(f"{_LEVELS}.level")
        else:
            word = re.sub(r"^-(O|cc)(?=[.=]|$)", _LEVELS, word)
            spelled.append(re.sub(r"^-ac(?=[.=]|$)", "--attention-config", word))
    return spelled


def _split(word: str) -> tuple[str, str, str]:
    """(flag, `=` or empty, value) of a word, with dashes in the flag; a word that is no flag stays as it is."""
    if not word.startswith("--"):
        return word, "", ""
    flag, equals, value = word.partition("=")
    head, dot, key = flag.partition(".")
    return head.replace("_", "-") + dot + key, equals, value


def _next(words: Iterator[str], flag: str) -> str:
    value = next(words, None)
    if value is None:
        raise click.UsageError(f"{flag} needs a value.")
    return value


def _merged(flag: str, values: list[tuple[str, str]]) -> str:
    """The option's merged value. Without any keys it is the last object unchanged, for click to parse."""
    if not any(key for key, _ in values):
        return values[-1][1]
    merged: dict[str, Any] = {}
    for key, value in values:
        if key:
            _put(merged, key.split("."), _value(value), f"{flag}.{key}")
        else:
            whole = _value(value)
            if not isinstance(whole, dict):
                raise click.UsageError(f"{flag}: {value!r} is not a JSON object.")
            merged |= whole
    return json.dumps(merged)


def _value(text: str) -> Any:
    """The text parsed as JSON, or else as it stands."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def _put(whole: dict[str, Any], path: list[str], value: Any, flag: str) -> None:
    *way, last = path
    for key in way:
        whole = whole.setdefault(key, {})
        if not isinstance(whole, dict):
            raise click.UsageError(f"{flag}: {key} is not an object.")
    if not last.removesuffix("+"):
        raise click.UsageError(f"{flag} ends with a dot. Add a key's name.")
    if not last.endswith("+"):
        whole[last] = value
        return
    items = whole.setdefault(last[:-1], [])
    if not isinstance(items, list):
        raise click.UsageError(f"{flag} adds to {items!r}, which is not a list.")
    more = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    items += [_value(item) if isinstance(item, str) else item for item in more]
