"""The click types that parse options' values."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import click
import msgspec

from quire.options.base import OptionField
from quire.options.json_object import check_object
from quire.options.parameter import Parameter


class SizedInt(click.ParamType[Any]):
    """An integer with an optional suffix: `32k` is 32,000, `32K` is 32,768, `25.6k` is 25,600."""

    name = "integer"
    _UNITS: typing.ClassVar[dict[str, int]] = {
        "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30,
    }  # fmt: skip

    def __init__(self, minimum: float | None, maximum: float | None, *, may_be_auto: bool = False) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self._may_be_auto = may_be_auto  # accepts `auto`, which means None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "auto" and self._may_be_auto:
            return None
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


class Number(click.FloatRange):
    """A number within bounds; refuses NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Choice(click.Choice[str]):
    """One of several texts, with explanations for other values."""

    def __init__(self, choices: Sequence[str], others: str, refused: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._others, self._refused = others, refused

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        if value in self._refused:
            return f"{value!r} is not supported. {self._refused[value]}"
        message = super().get_invalid_choice_message(value, ctx)
        return f"{message} {self._others}" if self._others else message


class JsonObject(click.ParamType[Any]):
    """A JSON object given as text."""

    name = "json"

    def __init__(self, schema: type[msgspec.Struct] | None, *, is_secret: bool = False) -> None:
        """
        Args:
            is_secret: whether messages must not show the value.
        """
        self._schema, self._is_secret = schema, is_secret

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        shown = "the value, which is secret," if self._is_secret else repr(value)
        try:
            parsed = value if isinstance(value, dict) else json.loads(value)
        except ValueError as error:
            self.fail(f"{shown} is not JSON: {error}. {self._how_to_write(param)}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{shown} is not a JSON object. {self._how_to_write(param)}", param, ctx)
        if parsed and self._schema:  # an empty object is always valid
            try:
                check_object(parsed, self._schema)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return parsed

    def _how_to_write(self, param: click.Parameter | None) -> str:
        key = self._schema.__struct_fields__[0] if self._schema else "KEY"
        flag = param.opts[0] if param else "--OPTION"
        return f"""Write '{{"{key}": …}}', or set each key separately: {flag}.{key} …"""


def _range(minimum: float | None, maximum: float | None) -> str:
    parts = [
        f"at least {minimum:g}" if minimum is not None else "",
        f"at most {maximum:g}" if maximum is not None else "",
    ]
    return " and ".join(part for part in parts if part)


def click_type(field: OptionField) -> click.ParamType[Any] | type:
    """The click type that parses a single value of the option."""
    metadata = field.metadata
    if metadata["choices"]:
        return Choice(metadata["choices"], metadata["others"], metadata["refused"])
    if field.type is dict:
        return JsonObject(metadata["schema"], is_secret=metadata["secret"])
    if field.type is int:
        return SizedInt(metadata["minimum"], metadata["maximum"], may_be_auto=field.default is None)
    if field.type is float:
        return Number(metadata["minimum"], metadata["maximum"])
    return field.type


def click_option(field: OptionField) -> click.Option:
    """The click option. Several values are given by repeating it, or as a JSON list; in the environment, also as
    words."""
    metadata = field.metadata
    common: dict[str, Any] = {
        "help": metadata["help"], "default": field.default, "envvar": field.environment_variables,
        "show_default": field.default not in (None, "", (), {}) and not metadata["secret"],
        "deprecated": metadata["deprecated"] or False,
    }  # fmt: skip
    if field.type is bool:
        return Parameter([f"{field.flag}/--no-{field.flag[2:]}"], **common)
    if metadata["bare"]:
        common |= {"is_flag": False, "flag_value": metadata["bare"]}
    return Parameter(
        [field.name, *metadata["aliases"], field.flag],
        type=click_type(field),
        multiple=field.multiple,
        metavar=metadata["metavar"] or None,
        **common,
    )
