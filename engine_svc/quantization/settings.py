"""Reads `quantization_config`. An unsupported setting ends the start with a message that lists what is supported."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quire.errors import StartupError

Settings = Mapping[str, Any]


def one_of(settings: Settings, name: str, allowed: Collection[Any], default: Any) -> Any:
    """A setting that must be one of a few values.

    Raises:
        StartupError: it has another value.
    """
    value = settings.get(name, default)
    if not any(type(value) is type(each) and value == each for each in allowed):
        choices = ", ".join(map(str, allowed))
        raise StartupError(f"quantization_config: {name} is {value!r}; supported: {choices}.")
    return value


def group_size(settings: Settings, name: str, default: int) -> int | None:
    """The number of inputs that share a scale; None means all of them.

    Raises:
        StartupError: the setting is not such a number.
    """
    value = settings.get(name, default)
    if type(value) is not int or value < -1 or value == 0:
        raise StartupError(
            f"quantization_config: {name} is {value!r}; expected a number of inputs, or -1 for all of them."
        )
    return None if value == -1 else value


def names(settings: Settings, name: str) -> Sequence[str]:
    """A list of names, such as names of modules; empty if the setting is missing.

    Raises:
        StartupError: the setting is not a list of names.
    """
    value = settings.get(name)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise StartupError(f"quantization_config: {name} is {value!r}; expected a list of names.")
    return tuple(value)
