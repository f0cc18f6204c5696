"""Which keywords of JSON schema a backend obeys: what it would pass over in silence has to be refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from quire.errors import InvalidRequest
from quire.structured.base import Inexpressible

# They say nothing about what is valid.
_ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def parse_schema(text: str, backend: str, obeyed: Collection[str]) -> dict[str, Any]:
    """The schema, as an object.

    Raises:
        InvalidRequest: it is none.
        Inexpressible: it has keywords that are not among those obeyed.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The JSON schema is not JSON: {error}") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON schema is an object or true; no output satisfies any other.")
    for part in schemas_in(schema):
        _check(part, backend, obeyed)
    return schema


def _check(part: Any, backend: str, obeyed: Collection[str]) -> None:
    if part is False:
        raise Inexpressible(f"{backend} does not know the schema false.")
    if not isinstance(part, dict):
        return
    if others := sorted(part.keys() - _ANNOTATIONS - set(obeyed)):
        raise Inexpressible(f"{backend} does not obey {', '.join(others)[:200]} in JSON schemas.")
    if not str(part.get("$ref", "#")).startswith("#"):
        raise InvalidRequest(f"$ref refers to another document ({str(part['$ref'])[:100]!r}); put it into $defs.")
    # What stands beside a reference is easily passed over.
    if "$ref" in part and (beside := sorted(part.keys() - _ANNOTATIONS - {"$ref"})):
        raise Inexpressible(f"{backend} does not obey {', '.join(beside)[:200]} beside $ref.")
    if "anyOf" in part and (beside := sorted(part.keys() - _ANNOTATIONS - {"anyOf"})):
        raise Inexpressible(f"{backend} does not obey {', '.join(beside)[:200]} beside anyOf.")


def schemas_in(schema: Any) -> Iterator[Any]:
    """The schema and all that are in it; `additionalProperties: false` is no schema here."""
    todo = [schema]
    while todo:
        part = todo.pop()
        yield part
        if not isinstance(part, dict):
            continue
        for name in _MAPS:
            todo += part[name].values() if isinstance(part.get(name), dict) else []
        for name in _LISTS:
            todo += part[name] if isinstance(part.get(name), list) else []
        todo += [part[name] for name in _SINGLE if isinstance(part.get(name), dict)]
