"""What the fields of all requests have in common."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Flag: TypeAlias = bool
    Whole: TypeAlias = int
else:  # as they come
    Flag = bool | None
    Whole = int | None


class RequestFields(msgspec.Struct):
    """Null means the same as absent: a `Flag` or `Whole` that comes as null has its default."""

    def __post_init__(self) -> None:
        for name, default in _defaults(type(self)):
            if getattr(self, name) is None:
                setattr(self, name, default)


@functools.cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """The fields that have one which is not null."""
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.default) for field in fields if isinstance(field.default, bool | int))
