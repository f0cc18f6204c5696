"""Quire's click parameter: accepts JSON lists, and ignores variables set by Kubernetes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import click

from quire.options.vllm.variables import value_of

# Kubernetes sets QUIRE_PORT=tcp://10.0.0.1:8000 in every pod when a service is called `quire`.
_LINK = re.compile(r"(tcp|udp|sctp)://")


class Parameter(click.Option):
    """An option. If it accepts several values, a JSON list stands for its items."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The value of the first of its variables that is set, unless Kubernetes set it for a service of that name."""
        names: Sequence[str] = [self.envvar] if isinstance(self.envvar, str) else self.envvar or ()
        given = ((name, value_of(name, os.environ)) for name in names)
        variable, value = next((pair for pair in given if pair[1]), ("", None))
        if value and variable.endswith("_PORT") and _LINK.match(value):
            click.echo(
                f"warning: {variable}={value} is ignored: it is not a port, but the variable that Kubernetes sets for "
                "a service of that name. Rename the service, or set enableServiceLinks: false in the pod.", err=True,
            )  # fmt: skip
            return None
        return value

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """The variable's values: a JSON list, or words separated by whitespace."""
        value = self.resolve_envvar_value(ctx) if self.multiple else None
        if value is not None and _json_list(value) is not None:
            return [value]
        return super().value_from_envvar(ctx)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The values, with JSON lists expanded."""
        if self.multiple and value is not None:
            value = [item for given in value for item in self._spread(given, ctx)]
        return super().type_cast_value(ctx, value)

    def _spread(self, given: Any, ctx: click.Context) -> Sequence[Any]:
        if isinstance(given, dict):  # from a config file
            return [json.dumps(given)]
        if not isinstance(given, str):
            return [given]
        items = _json_list(given)
        if items is None and re.match(r'\[\s*"', given):
            raise click.BadParameter(f"{given!r} begins like a JSON list but is not valid JSON.", ctx, self)
        return [given] if items is None else items


def repeat_flag(arguments: Sequence[str], flag: str, following: str) -> list[str]:
    """Inserts the flag before each of its further values: words after the first value that match `following`."""
    found: list[str] = []
    is_open, takes_any = False, False  # whether a further value may follow; whether any word is a value
    for index, word in enumerate(arguments):
        if word == "--":
            return found + list(arguments[index:])
        if is_open and not takes_any and re.match(following, word):
            found.append(flag)
        elif not takes_any:
            is_open = word == flag or word.startswith(f"{flag}=")
        takes_any = word == flag and not takes_any
        found.append(word)
    return found


def as_value(item: Any) -> str:
    """An option's value as text that is not mistaken for a list."""
    text = str(item)
    return json.dumps([text]) if text.startswith("[") else text


def _json_list(text: str) -> list[Any] | None:
    """The items of a JSON list of strings and numbers; None for any other text, such as `[::1]:8000`."""
    if not text.lstrip().startswith("["):
        return None
    try:
        items = json.loads(text)
    except ValueError:
        return None
    plain = isinstance(items, list) and all(
        isinstance(item, str | int | float) and not isinstance(item, bool) for item in items
    )
    return items if plain else None
