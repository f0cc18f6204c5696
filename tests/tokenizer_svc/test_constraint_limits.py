"""Limits on constraints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form
from tokenizer_svc.constraint_limits import MAX_COUNT, MAX_DEPTH, check_limits


def schema(value: Any) -> ConstraintRequest:
    return ConstraintRequest(Form.JSON_SCHEMA, value if isinstance(value, str) else json.dumps(value))


def nested(levels: int) -> str:
    return '{"items":' * (levels - 1) + "{}" + "}" * (levels - 1)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (schema(nested(10_000)), "nests too deeply"),
        (schema("[" * 60_000), "nests too deeply"),
        (schema(nested(MAX_DEPTH + 1)), f"more than {MAX_DEPTH} levels"),
        (schema("{'a': 1}"), "is not valid JSON"),
        (schema({"properties": {"a": {"maxLength": 10**9}}}), "maxLength is 1000000000; at most"),
        (schema({"maxItems": 1e300}), "maxItems is 1e.300; at most"),
        (schema({"$defs": {"a": {"pattern": "^(a+)+$"}}}), r"'\(a\+\)\+' nests unbounded repetitions"),
        (schema({"patternProperties": {"^([a-z]*)*$": {}}}), "nests unbounded repetitions"),
        (ConstraintRequest(Form.STRUCTURAL_TAG, '{"structures": [{"schema": {"minItems": 1e9}}]}'), "minItems is"),
        (ConstraintRequest(Form.REGEX, "(a+)+$"), "nests unbounded repetitions"),
        (ConstraintRequest(Form.REGEX, r"(?:\d*)+"), "nests unbounded repetitions"),
        (ConstraintRequest(Form.REGEX, r"([^\]a]{2,})*"), "nests unbounded repetitions"),
        (ConstraintRequest(Form.REGEX, "a{1000000000}"), "repeats too often; at most 1048576"),
        (ConstraintRequest(Form.REGEX, "a{0,1000000000}"), "repeats too often"),
        (ConstraintRequest(Form.REGEX, "a{9" + "9" * 5000 + "}"), "repeats too often"),
        (ConstraintRequest(Form.GRAMMAR, 'start: "a"{1000000000}'), "repeats too often"),
        (ConstraintRequest(Form.JSON_SCHEMA, "{}", whitespace_pattern="( *)*"), "nests unbounded repetitions"),
    ],
)
def test_refused(request_: ConstraintRequest, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_limits(request_)


@pytest.mark.parametrize(
    "request_",
    [
        schema(nested(MAX_DEPTH)),
        schema({"properties": {"maxLength": {"type": "integer"}, "pattern": {"maxLength": MAX_COUNT}}}),
        schema(True),
        ConstraintRequest(Form.REGEX, r"(\w+\s?)+([a-z]+){3}\(a+\)+(a+|b)+[(+)]+\{1000000000}"),
        ConstraintRequest(Form.CHOICES, choices=("(a+)+",)),
        ConstraintRequest(Form.GRAMMAR, 'start: ("a"{1,3})+'),
    ],
)
def test_allowed(request_: ConstraintRequest) -> None:
    check_limits(request_)
