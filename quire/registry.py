"""Registries: tables of an option's values by name, whose entries may be imported only when chosen.

`quire/options` lists the names and imports no service; the service's table maps them to implementations.
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
    """Returns the table, read-only.

    Args:
        names: values that the option takes, which must be exactly the table's keys.

    Raises:
        RuntimeError: names and table differ.
    """
    if differing := set(names) ^ table.keys():
        raise RuntimeError(f"{flag} and its registry differ in {', '.join(sorted(differing))}")
    return MappingProxyType(dict(table))


def load_entry(flag: str, table: Mapping[str, str], name: str) -> Any:
    """Loads the object that an entry `module:attribute` names.

    Raises:
        StartupError: there is no entry of that name.
    """
    if name not in table:
        raise StartupError(f"{flag} {name} does not exist. Choose one of {', '.join(table)}.")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_plugin(flag: str, table: Mapping[str, str], group: str, name: str) -> Any:
    """Loads the entry point with this name and group from an installed package.

    Raises:
        StartupError: there is none, or it cannot be imported.
    """
    plugins = importlib.metadata.entry_points(group=group)
    if name not in plugins.names:
        others = ", ".join((*table, *sorted(plugins.names)))
        raise StartupError(
            f"{flag} {name} does not exist. Choose one of {others}, or install a package with an entry point {group}."
        )
    try:
        return plugins[name].load()
    except Exception as error:  # third-party code, which may fail in any way
        raise StartupError(f"{flag} {name} cannot be loaded: {type(error).__name__}: {error}") from error


def load_qualified(name: str) -> Any:
    """Loads `package.module.Name` or `package.module:Name`; None means that the module has no such name.

    Raises:
        ValueError: it names no module, or one that cannot be imported; the message says why.
    """
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    if not module:
        raise ValueError(f"{name!r} has no module: write package.module.Class")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # third-party code, which may fail in any way
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
