"""A single constraint from the many fields that can request one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.endpoints.body import decode_json
from gateway.protocol.completions import CompletionRequest
from gateway.requests.constraint import NamedConstraint, constraint_of
from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form

SCHEMA = {"type": "object", "properties": {"a": {"const": "é"}}}
TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}
OBJECT = {"type": "object"}


def read(fields: dict[str, Any]) -> NamedConstraint | None:
    return constraint_of(decode_json(json.dumps({"prompt": "A"} | fields).encode(), CompletionRequest))


def json_of(found: NamedConstraint) -> Any:
    return json.loads(found.asked.request.text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "structured_outputs": None, "guided_json": None, "guided_choice": None},
        {"response_format": {"type": "text"}, "guided_decoding_backend": "auto", "guided_json_object": False},
    ],
)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert read(fields) is None


@pytest.mark.parametrize(
    ("fields", "parameter", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", OBJECT),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
         "response_format.json_schema.schema", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", OBJECT),
        ({"guided_json": SCHEMA}, "guided_json", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "guided_json", SCHEMA),
        ({"guided_json": True}, "guided_json", True),
        ({"guided_json_object": True}, "guided_json_object", OBJECT),
    ],
)  # fmt: skip
def test_json(fields: dict[str, Any], parameter: str, value: Any) -> None:
    found = read(fields)
    assert found is not None
    assert (found.parameter, found.asked.request.form, json_of(found)) == (parameter, Form.JSON_SCHEMA, value)


@pytest.mark.parametrize(
    ("field", "value", "request_"),
    [
        ("regex", "a+", ConstraintRequest(Form.REGEX, "a+")),
        ("choice", ["a", "b"], ConstraintRequest(Form.CHOICES, choices=("a", "b"))),
        ("grammar", 'start: "a"', ConstraintRequest(Form.GRAMMAR, 'start: "a"')),
    ],
)
def test_texts(field: str, value: Any, request_: ConstraintRequest) -> None:
    for fields, parameter in (
        ({"structured_outputs": {field: value}}, f"structured_outputs.{field}"),
        ({f"guided_{field}": value}, f"guided_{field}"),
        ({f"guided_{field}": value, "structured_outputs": {field: value}}, f"structured_outputs.{field}"),
    ):
        found = read(fields)
        assert found is not None
        assert (found.parameter, found.asked.request) == (parameter, request_)


@pytest.mark.parametrize(
    ("fields", "tag"),
    [
        ({"response_format": {"type": "structural_tag"} | TAG}, TAG | {"type": "structural_tag"}),
        ({"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
         {"type": "structural_tag", "format": {"type": "any_text"}}),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, TAG),
        ({"structured_outputs": {"structural_tag": TAG}}, TAG),
    ],
)  # fmt: skip
def test_structural_tags(fields: dict[str, Any], tag: Any) -> None:
    found = read(fields)
    assert found is not None
    assert (found.asked.request.form, json_of(found)) == (Form.STRUCTURAL_TAG, tag)


def test_switches() -> None:
    found = read(
        {
            "structured_outputs": {
                "json": SCHEMA, "backend": "guidance", "disable_fallback": True, "disable_any_whitespace": True,
                "disable_additional_properties": True, "whitespace_pattern": " ?",
            },
            "guided_decoding_backend": "guidance",
        }
    )  # fmt: skip
    assert found is not None
    assert (found.asked.backend, found.asked.disable_fallback) == ("guidance", True)
    request = found.asked.request
    assert (request.disable_any_whitespace, request.disable_additional_properties) == (True, True)
    assert request.whitespace_pattern == " ?"


def test_old_switches() -> None:
    found = read({"guided_regex": "a", "guided_decoding_backend": "outlines", "guided_whitespace_pattern": " "})
    assert found is not None
    assert (found.asked.backend, found.asked.request.whitespace_pattern) == ("outlines", " ")


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice", "response_format and"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs.grammar", "structured_outputs.re"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "guided_json and guided_regex"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex", "structured_outputs.regex and"),
        ({"structured_outputs": {}}, "structured_outputs", "needs one of json"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "needs one of json"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "no json_schema.schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'yaml'; it must be one of text, json_object"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "needs format"),
        ({"response_format": {"type": "structural_tag", "triggers": ["a"]}}, "response_format", "needs format"),
        ({"response_format": {}}, "response_format.type", "missing required field `type`"),
        ({"guided_choice": "a"}, "guided_choice", "Expected `array"),
        ({"structured_outputs": {"regex": "a", "backend": "guidance"}, "guided_decoding_backend": "outlines"},
         "guided_decoding_backend", "leave one out"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        read(fields)
    assert raised.value.parameter == parameter
