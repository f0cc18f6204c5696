"""From a dataclass to flags, environment variables, YAML keys and documentation.

A field made with `option(...)` is one option: `max_model_len` is `--max-model-len` on the command line,
`QUIRE_MAX_MODEL_LEN` in the environment and `max-model-len` in a `--config` file. The command line wins over the
environment, that over the file, that over the default.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import click

from quire.options.parameter import Parameter, as_value

ENVIRONMENT_PREFIX = "QUIRE_"
T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    others: str = "",
    metavar: str = "",
    aliases: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    positional: bool = False,
    secret: bool = False,
    json_value: bool = False,
) -> Any:
    """A dataclass field that is an option.

    Args:
        choices: the only values taken, for strings.
        others: what to say to those who want other values.
        aliases: further flags, such as `-tp`.
        minimum, maximum: bounds of a number, both included.
        positional: may also be given without its flag, as the command's argument.
        secret: never shown in help, logs or process titles; handed to child processes by environment.
        json_value: parsed as a JSON object.
    """
    metadata = {
        "help": help, "choices": tuple(choices), "others": others, "metavar": metavar, "aliases": tuple(aliases),
        "minimum": minimum, "maximum": maximum, "positional": positional, "secret": secret, "json": json_value,
    }  # fmt: skip
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionField:
    """One option, as the command line, the environment and the docs see it."""

    name: str
    type: type  # str, int, float, bool or dict; the element type when `multiple`
    multiple: bool
    default: Any
    metadata: Mapping[str, Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment_variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def fields_of(cls: type) -> list[OptionField]:
    """The options of a dataclass, in order."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind, multiple = _element_type(hints[field.name])
        default = field.default_factory() if callable(field.default_factory) else field.default
        found.append(OptionField(field.name, kind, multiple, default, field.metadata))
    return found


def _element_type(hint: Any) -> tuple[type, bool]:
    """(type, multiple) of `int`, `int | None`, `list[int]` or `tuple[int, ...]`."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        return typing.get_args(hint)[0], True
    return origin or hint, False


class SizedInt(click.ParamType[Any]):
    """An integer, with the suffixes that people use: `32k` is 32,000, `32K` is 32,768, `25.6k` is 25,600."""

    name = "integer"
    _UNITS: typing.ClassVar[dict[str, int]] = {
        "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30,
    }  # fmt: skip

    def __init__(self, minimum: float | None, maximum: float | None) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgKMG]?)", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not an integer (25.6k means 25,600 and 32K means 32,768).", param, ctx)
        number = Fraction(match[1]) * self._UNITS[match[2]]
        if number.denominator != 1:
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        exact = int(number)
        if (self.minimum is not None and exact < self.minimum) or (self.maximum is not None and exact > self.maximum):
            self.fail(f"{value} is out of range: {_range(self.minimum, self.maximum)}.", param, ctx)
        return exact


class Choice(click.Choice[str]):
    """One of some texts; says what else there is to know about all others."""

    def __init__(self, choices: Sequence[str], others: str) -> None:
        super().__init__(choices)
        self._others = others

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        return f"{message} {self._others}" if self._others else message


class JsonObject(click.ParamType[Any]):
    """A JSON object given as text."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            parsed = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}.", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is not a JSON object.", param, ctx)
        return parsed


def _range(minimum: float | None, maximum: float | None) -> str:
    parts = [
        f"at least {minimum:g}" if minimum is not None else "",
        f"at most {maximum:g}" if maximum is not None else "",
    ]
    return " and ".join(part for part in parts if part)


def click_type(field: OptionField) -> click.ParamType[Any] | type:
    """The click type that parses one value of the option."""
    metadata = field.metadata
    if metadata["choices"]:
        return Choice(metadata["choices"], metadata["others"])
    if metadata["json"]:
        return JsonObject()
    if field.type is int:
        return SizedInt(metadata["minimum"], metadata["maximum"])
    if field.type is float:
        return click.FloatRange(metadata["minimum"], metadata["maximum"])
    return field.type


def click_option(field: OptionField) -> click.Option:
    """The option as click sees it. Several values are repeated, or one JSON list; in the environment, also words."""
    metadata = field.metadata
    common: dict[str, Any] = {
        "help": metadata["help"], "default": field.default, "envvar": field.environment_variable,
        "show_default": field.default not in (None, "", (), {}) and not metadata["secret"],
    }  # fmt: skip
    if field.type is bool:
        return Parameter([f"{field.flag}/--no-{field.flag[2:]}"], **common)
    return Parameter(
        [*metadata["aliases"], field.flag],
        type=click_type(field),
        multiple=field.multiple,
        metavar=metadata["metavar"] or None,
        **common,
    )


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of the dataclass from parsed values; what is missing keeps its default."""
    known = {field.name: field for field in fields_of(cls)}
    chosen = {}
    for name, value in values.items():
        if name in known:
            chosen[name] = tuple(value) if known[name].multiple else value
    return cls(**chosen)


def to_arguments(options: Any) -> tuple[list[str], dict[str, str]]:
    """(arguments, environment) that make a child process parse the same options; secrets go by environment."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    for field in fields_of(type(options)):
        value = getattr(options, field.name)
        if value == field.default:
            continue
        if field.type is bool:
            arguments.append(field.flag if value else f"--no-{field.flag[2:]}")
        elif field.metadata["secret"]:
            environment[field.environment_variable] = json.dumps(value) if field.multiple else str(value)
        elif field.multiple:
            arguments += [word for item in value for word in (field.flag, as_value(item))]
        else:
            arguments += [field.flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return arguments, environment
