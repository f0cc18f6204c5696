"""Reading `quantization_config`: each setting is what a method supports, or the start ends with what is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quire.errors import StartupError

Settings = Mapping[str, Any]


def one_of(settings: Settings, name: str, allowed: Collection[Any], default: Any) -> Any:
    """A setting that is one of a few values.

    Raises:
        StartupError: it is another.
    """
    value = settings.get(name, default)
    if not any(type(value) is type(each) and value == each for each in allowed):
        choices = ", ".join(map(str, allowed))
        raise StartupError(f"quantization_config: {name} is {value!r}, of which this is supported: {choices}.")
    return value


def group_size(settings: Settings, name: str, default: int) -> int | None:
    """Inputs that share a scale; None if all do.

    Raises:
        StartupError: it is no such number.
    """
    value = settings.get(name, default)
    if type(value) is not int or value < -1 or value == 0:
        raise StartupError(f"quantization_config: {name} is {value!r}, not a number of inputs, nor -1 for all of them.")
    return None if value == -1 else value


def names(settings: Settings, name: str) -> Sequence[str]:
    """A list of names, of modules say; it may be missing.

    Raises:
        StartupError: it is no such list.
    """
    value = settings.get(name)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise StartupError(f"quantization_config: {name} is {value!r}, not a list of names.")
    return tuple(value)
