"""Base class and field types of all requests."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Flag: TypeAlias = bool
    Whole: TypeAlias = int
else:  # what msgspec accepts in a body
    Flag = bool | None
    Whole = int | None


class RequestFields(msgspec.Struct):
    """Treats null as absent: a `Flag` or `Whole` field that is null gets its default."""

    def __post_init__(self) -> None:
        for name, default in _defaults(type(self)):
            if getattr(self, name) is None:
                setattr(self, name, default)


@functools.cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """The fields whose default is a bool or an int, with that default."""
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.default) for field in fields if isinstance(field.default, bool | int))
