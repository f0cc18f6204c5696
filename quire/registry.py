"""What stands behind the values of an option: tables by name, whose entries may be imported when they are taken.

`quire/options` names the values and imports no service; the service's table has what they stand for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from quire.errors import StartupError

T = TypeVar("T")


def registry(flag: str, names: Collection[str], table: Mapping[str, T]) -> Mapping[str, T]:
    """The table, read-only.

    Args:
        names: values that the option takes, and that must be in the table.

    Raises:
        RuntimeError: names and table differ.
    """
    if differing := set(names) ^ table.keys():
        raise RuntimeError(f"{flag} and its registry differ in {', '.join(sorted(differing))}")
    return MappingProxyType(dict(table))


def load_entry(flag: str, table: Mapping[str, str], name: str) -> Any:
    """What an entry `module:attribute` names.

    Raises:
        StartupError: there is no entry of that name.
    """
    if name not in table:
        raise StartupError(f"{flag} {name} does not exist. Choose one of {', '.join(table)}.")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_plugin(flag: str, table: Mapping[str, str], group: str, name: str) -> Any:
    """What an installed package offers under that name, as an entry point of the group.

    Raises:
        StartupError: none does, or it cannot be imported.
    """
    plugins = importlib.metadata.entry_points(group=group)
    if name not in plugins.names:
        others = ", ".join((*table, *sorted(plugins.names)))
        raise StartupError(
            f"{flag} {name} does not exist. Choose one of {others}, or install a package with an entry point {group}."
        )
    try:
        return plugins[name].load()
    except Exception as error:  # somebody else's code, which may fail in any way
        raise StartupError(f"{flag} {name} cannot be loaded: {type(error).__name__}: {error}") from error


def load_qualified(name: str) -> Any:
    """What `package.module.Name` or `package.module:Name` stands for; None where the module has no such name.

    Raises:
        ValueError: it names no module, or one that cannot be imported; says why.
    """
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    if not module:
        raise ValueError(f"{name!r} names no module: write package.module.Class")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # somebody else's code, which may fail in any way
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
