"""Reduces the many fields that can constrain the output to one constraint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from gateway.protocol.constraints import ConstraintFields, ResponseFormat, StructuredOutputs
from quire.errors import InvalidRequest
from quire.structured.asked import AskedConstraint
from quire.structured.base import ConstraintRequest, Form

_ANY_OBJECT = '{"type": "object"}'
_TAG_FIELDS = ("structures", "triggers", "format")
_TYPES = ("text", "json_object", "json_schema", "structural_tag")


@dataclass(frozen=True)
class NamedConstraint:
    """A constraint, and the field it came from."""

    asked: AskedConstraint
    parameter: str  # name of the field


def constraint_of(body: ConstraintFields) -> NamedConstraint | None:
    """Returns the constraint on the outputs; None if the body has none.

    Raises:
        InvalidRequest: there are several constraints, a field that needs one is empty, or a field is malformed.
    """
    found: dict[ConstraintRequest, str] = {}  # and where it was found
    for parameter, form in (
        *_response_format(body.response_format), *_structured_outputs(body.structured_outputs), *_guided(body),
    ):  # fmt: skip
        # Clients for servers of any age say the same in the old field and in the new one.
        found.setdefault(form, parameter)
    if len(found) > 1:
        first, second, *_ = found.values()
        raise InvalidRequest(
            f"{first} and {second} both constrain the output; leave one of them out.", parameter=second
        )
    if not found:
        return None
    ((form, parameter),) = found.items()
    switches = body.structured_outputs or StructuredOutputs()
    request = dataclasses.replace(
        form,
        disable_any_whitespace=switches.disable_any_whitespace,
        disable_additional_properties=switches.disable_additional_properties,
        whitespace_pattern=_one("whitespace_pattern", switches, "guided_whitespace_pattern", body),
    )
    backend = _one("backend", switches, "guided_decoding_backend", body)
    return NamedConstraint(AskedConstraint(request, backend, switches.disable_fallback), parameter)


Found = Iterator[tuple[str, ConstraintRequest]]  # field name and constraint


def _response_format(asked: ResponseFormat | None) -> Found:
    if asked is None or asked.type == "text":
        return
    if asked.type == "json_object":
        yield "response_format", ConstraintRequest(Form.JSON_SCHEMA, _ANY_OBJECT)
    elif asked.type == "json_schema":
        parameter = "response_format.json_schema.schema"
        schema = _json(asked.json_schema.schema, parameter) if asked.json_schema else ""
        if not schema:
            raise InvalidRequest(
                "response_format has type json_schema but no json_schema.schema; set it.", parameter=parameter
            )
        yield parameter, ConstraintRequest(Form.JSON_SCHEMA, schema)
    elif asked.type == "structural_tag":
        yield "response_format", ConstraintRequest(Form.STRUCTURAL_TAG, _tag(asked))
    else:
        raise InvalidRequest(
            f"response_format.type is {asked.type[:50]!r}; it must be one of {', '.join(_TYPES)}.",
            parameter="response_format.type",
        )


def _tag(asked: ResponseFormat) -> str:
    """Reassembles the structural tag into one object: `format`, or the older `structures` and `triggers`."""
    fields = {name: _json(getattr(asked, name), f"response_format.{name}") for name in _TAG_FIELDS}
    given = [name for name in _TAG_FIELDS if fields[name]]
    if given not in (["format"], ["structures", "triggers"]):
        raise InvalidRequest(
            "response_format of type structural_tag needs format, or structures and triggers.",
            parameter="response_format",
        )
    return ", ".join(['{"type": "structural_tag"', *(f'"{name}": {fields[name]}' for name in given)]) + "}"


def _structured_outputs(asked: StructuredOutputs | None) -> Found:
    if asked is None:
        return
    found = list(_forms(asked, "structured_outputs."))
    if not found:
        raise InvalidRequest(
            "structured_outputs needs one of json, regex, choice, grammar, json_object and structural_tag.",
            parameter="structured_outputs",
        )
    yield from found


def _guided(body: ConstraintFields) -> Found:
    """Converts the old `guided_*` fields."""
    asked = StructuredOutputs(
        json=body.guided_json, regex=body.guided_regex, choice=body.guided_choice, grammar=body.guided_grammar,
        json_object=body.guided_json_object,
    )  # fmt: skip
    yield from _forms(asked, "guided_")


def _forms(asked: StructuredOutputs, prefix: str) -> Found:
    if schema := _json(asked.json, f"{prefix}json"):
        yield f"{prefix}json", ConstraintRequest(Form.JSON_SCHEMA, schema)
    if asked.regex is not None:
        yield f"{prefix}regex", ConstraintRequest(Form.REGEX, asked.regex)
    if asked.choice is not None:
        yield f"{prefix}choice", ConstraintRequest(Form.CHOICES, choices=tuple(asked.choice))
    if asked.grammar is not None:
        yield f"{prefix}grammar", ConstraintRequest(Form.GRAMMAR, asked.grammar)
    if asked.json_object:
        yield f"{prefix}json_object", ConstraintRequest(Form.JSON_SCHEMA, _ANY_OBJECT)
    if tag := _json(asked.structural_tag, f"{prefix}structural_tag"):
        yield f"{prefix}structural_tag", ConstraintRequest(Form.STRUCTURAL_TAG, tag)


def _json(raw: msgspec.Raw, parameter: str) -> str:
    """Returns the JSON text of a field, which may also have been sent as a string; empty if absent."""
    text = bytes(raw)
    try:
        if text.startswith(b'"'):
            return msgspec.json.decode(text, type=str)
        return "" if text == b"null" else text.decode()
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{parameter} is not UTF-8: {error}", parameter=parameter) from None


def _one(name: str, switches: StructuredOutputs, old_name: str, body: ConstraintFields) -> str:
    """Returns the value of either field; raises InvalidRequest if they differ."""
    value, old = getattr(switches, name) or "", getattr(body, old_name) or ""
    if value and old and value != old:
        raise InvalidRequest(
            f"structured_outputs.{name} is {value[:50]!r} and {old_name} {old[:50]!r}; leave one out.",
            parameter=old_name,
        )
    return value or old
