"""The JSON schema keywords that each backend honors: schemas with keywords it would silently ignore must be refused."""

from __future__ import annotations

import graphlib
import json
from collections.abc import Iterator
from typing import Any

from quire.errors import InvalidRequest
from quire.structured.base import Inexpressible

# Keywords that do not affect validity.
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
# Keywords that backends honor as specified, or more strictly; they ignore the rest, or interpret it differently.
_COMMON = (
    "type properties required additionalProperties items minItems maxItems enum const anyOf $ref minLength maxLength"
)
OBEYED = {
    "outlines": frozenset(_COMMON.split()),
    "xgrammar": frozenset([*_COMMON.split(), "prefixItems", "minimum", "maximum"]),
}
_TYPES = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def parse_schema(text: str, backend: str) -> dict[str, Any]:
    """Parses a schema into an object.

    Raises:
        InvalidRequest: it is not a satisfiable schema.
        Inexpressible: it has keywords that the backend does not honor.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The JSON schema is not valid JSON: {error}") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON schema must be an object or true; no output satisfies any other.")
    for part in schemas_in(schema):
        _check(part, backend)
    return schema


def _check(part: Any, backend: str) -> None:
    if part is False:
        raise Inexpressible(f"{backend} does not support the schema false.")
    if not isinstance(part, dict):
        return
    if others := sorted(part.keys() - _ANNOTATIONS - OBEYED[backend]):
        raise Inexpressible(f"{backend} does not support {', '.join(others)[:200]} in JSON schemas.")
    if not str(part.get("$ref", "#")).startswith("#"):
        raise InvalidRequest(f"$ref refers to another document ({str(part['$ref'])[:100]!r}); put it into $defs.")
    for alone in ("$ref", "anyOf", "enum", "const"):  # keywords beside these are easily ignored
        beside = sorted(part.keys() - _ANNOTATIONS - {alone}) if alone in part else []
        if beside and not (alone in ("enum", "const") and beside == ["type"] and _is_of_type(part)):
            raise Inexpressible(f"{backend} does not support {', '.join(beside)[:200]} beside {alone}.")


def _is_of_type(part: dict[str, Any]) -> bool:
    """Whether all values that the schema lists have the type that it names."""
    kind = _TYPES.get(str(part["type"]))
    values = part.get("enum", [part.get("const")])
    return kind is not None and isinstance(values, list) and all(type(value) is kind for value in values)


def check_no_recursion(schema: dict[str, Any], backend: str) -> None:
    """Checks that references are to non-recursive definitions.

    Raises:
        Inexpressible: a definition refers to itself, or a reference is to something other than a definition.
    """
    named = {f"#/{kind}/{name}": part for kind in ("$defs", "definitions")
             if isinstance(schema.get(kind), dict) for name, part in schema[kind].items()}  # fmt: skip
    used = {name: _references(part) for name, part in named.items()}
    if others := sorted((_references(schema) | set().union(*used.values())) - named.keys()):
        raise Inexpressible(f"{backend} only supports references to definitions, not {others[0][:100]!r}.")
    try:
        graphlib.TopologicalSorter(used).prepare()
    except graphlib.CycleError:
        raise Inexpressible(f"{backend} does not support definitions that refer to themselves.") from None


def _references(schema: Any) -> set[str]:
    return {str(part["$ref"]) for part in schemas_in(schema) if isinstance(part, dict) and "$ref" in part}


def schemas_in(schema: Any) -> Iterator[Any]:
    """Yields the schema and all schemas in it; `additionalProperties: false` does not count as one."""
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
