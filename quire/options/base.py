"""Derives flags, environment variables, YAML keys and documentation from a dataclass.

A field made with `option(...)` is one option: `max_model_len` is `--max-model-len` on the command line,
`QUIRE_MAX_MODEL_LEN` in the environment and `max-model-len` in a `--config` file. The command line takes precedence
over the environment, which does over the file, which does over the default.

A field of an options dataclass may be another options dataclass: a group, which is passed to its component as is. The
first line of the class's docstring is the group's title in help and docs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from quire.options.parameter import as_value

ENVIRONMENT_PREFIX = "QUIRE_"
ANY_WORD = r"[^-]"  # any word but a flag
T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    others: str = "",
    refused: Mapping[str, str] = {},
    metavar: str = "",
    aliases: Sequence[str] = (),
    variables: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    positional: bool = False,
    secret: bool = False,
    bare: str = "",
    following: str = "",
    schema: type[msgspec.Struct] | None = None,
    affects_output: bool = False,
    deprecated: str = "",
) -> Any:
    """Declares a dataclass field that is an option.

    Args:
        choices: the only values accepted, for strings.
        others: message for other values than the choices.
        refused: value → message for values that are refused with an explanation.
        aliases: further flags, such as `-tp`.
        variables: further environment variables, as other servers name them.
        minimum, maximum: inclusive bounds of a number.
        positional: whether it may also be given without its flag, as the command's argument.
        secret: whether its value is never shown in help, logs or process titles; passed to child processes by
            environment.
        bare: value of the flag when it is given without one.
        following: for options with several values: words after the first that match this expression are further values.
        schema: allowed keys of a JSON object (type `dict`); None allows any.
        affects_output: whether the value may change a request's tokens, which makes it part of a worker's fingerprint.
        deprecated: what to use instead; using the option prints a warning.
    """
    metadata = {
        "help": help, "choices": tuple(choices), "others": others, "refused": refused, "metavar": metavar,
        "aliases": tuple(aliases), "variables": tuple(variables),
        "minimum": minimum, "maximum": maximum, "positional": positional, "secret": secret, "bare": bare,
        "following": following, "schema": schema,
        "affects_output": affects_output, "deprecated": deprecated,
    }  # fmt: skip
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionField:
    """One option, as seen by the command line, the environment and the docs."""

    name: str
    type: type  # str, int, float, bool or dict; the element type when `multiple`
    multiple: bool
    default: Any
    metadata: Mapping[str, Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def has_keys(self) -> bool:
        """Whether its value may be a JSON object, whose keys can be set one by one: `--flag.key value`."""
        return self.type is dict or self.metadata["metavar"].startswith("JSON")

    @property
    def environment_variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def environment_variables(self) -> list[str]:
        """Its own variable, and further ones that are read if that is not set."""
        return [self.environment_variable, *self.metadata["variables"]]

    @property
    def names(self) -> list[str]:
        """All its names on the command line and in the environment; a file's key corresponds to the flag."""
        negative = [f"--no-{self.flag[2:]}"] if self.type is bool else []
        return [self.flag, *negative, *self.metadata["aliases"], *self.environment_variables]


@dataclass(frozen=True)
class OptionGroup:
    """The options of one dataclass, without those of nested groups.

    Attributes:
        name: the name of vLLM's corresponding group, if it has one.
    """

    name: str
    title: str
    fields: Sequence[OptionField]


@functools.cache
def groups_of(cls: type) -> Sequence[OptionGroup]:
    """The options of a dataclass by group: its own, if any, then those of each nested group."""
    name = getattr(cls, "group", f"{cls.__name__.removesuffix('Options')}Config")
    title = (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")
    own = [OptionGroup(name, title, fields)] if (fields := _own_fields(cls)) else []
    return (*own, *(group for nested in _nested(cls).values() for group in groups_of(nested)))


@functools.cache
def fields_of(cls: type) -> Sequence[OptionField]:
    """The options of a dataclass, in order, including those of nested groups."""
    return tuple(field for group in groups_of(cls) for field in group.fields)


def values_of(options: Any) -> Iterator[tuple[OptionField, Any]]:
    """Yields all options, including those of nested groups, with their values."""
    cls: type = type(options)
    for field in _own_fields(cls):
        yield field, getattr(options, field.name)
    for name in _nested(cls):
        yield from values_of(getattr(options, name))


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _nested(cls: type) -> Mapping[str, type]:
    """Name → dataclass of each field that is a group."""
    hints = _hints(cls)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


@functools.cache
def _own_fields(cls: type) -> Sequence[OptionField]:
    hints, nested = _hints(cls), _nested(cls)
    found = []
    for field in dataclasses.fields(cls):
        if field.name not in nested:
            kind, multiple = _element_type(hints[field.name])
            default = field.default_factory() if callable(field.default_factory) else field.default
            found.append(OptionField(field.name, kind, multiple, default, field.metadata))
    return tuple(found)


def _element_type(hint: Any) -> tuple[type, bool]:
    """(type, multiple) of `int`, `int | None`, `list[int]` or `tuple[int, ...]`."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        return typing.get_args(hint)[0], True
    return origin or hint, False


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Creates an instance of the dataclass, with its groups, from parsed values by name; missing ones keep their
    defaults.

    Raises:
        TypeError: it has no option of some name.
    """
    kind: type = cls  # mypy takes type[T] for unhashable
    if unknown := values.keys() - {field.name for field in fields_of(kind)}:
        raise TypeError(f"{cls.__name__} has no option {', '.join(sorted(unknown))}")
    built: T = _build(kind, values)
    return built


def _build(cls: type, values: Mapping[str, Any]) -> Any:
    own = {field.name: field for field in _own_fields(cls) if field.name in values}
    chosen = {name: tuple(values[name]) if field.multiple else values[name] for name, field in own.items()}
    return cls(**chosen, **{name: _build(group, values) for name, group in _nested(cls).items()})


def to_arguments(options: Any) -> tuple[list[str], dict[str, str]]:
    """(arguments, environment) that make a child process parse the same options; secrets are passed by environment."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    for field, value in values_of(options):
        if value == field.default:
            continue
        if field.type is bool:
            arguments.append(field.flag if value else f"--no-{field.flag[2:]}")
        elif field.metadata["secret"]:
            environment[field.environment_variable] = (
                json.dumps(value) if field.multiple or isinstance(value, dict) else str(value)
            )
        elif field.multiple:
            arguments += [word for item in value for word in (field.flag, as_value(item))]
        else:
            arguments += [field.flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return arguments, environment
