"""Which backends are tried when another cannot handle a constraint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.structured.base import ConstraintRequest, Form
from quire.structured.fallback import may_express

REF = {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1]}}}


@pytest.mark.parametrize(
    ("request_", "able"),
    [
        (ConstraintRequest(Form.REGEX, "a+"), {"guidance", "xgrammar", "outlines"}),
        (ConstraintRequest(Form.REGEX, "(?!a)b"), set()),
        (ConstraintRequest(Form.REGEX, r"(a)\1"), set()),
        (ConstraintRequest(Form.CHOICES, choices=("a",)), {"guidance", "xgrammar", "outlines"}),
        (ConstraintRequest(Form.GRAMMAR, 'root ::= "a"'), {"guidance", "xgrammar"}),
        (ConstraintRequest(Form.STRUCTURAL_TAG, "{}"), {"guidance"}),
        (ConstraintRequest(Form.JSON_SCHEMA, "{"), {"guidance"}),
    ],
)
def test_by_form(request_: ConstraintRequest, able: set[str]) -> None:
    assert {name for name in ("guidance", "xgrammar", "outlines") if may_express(name, request_)} == able


@pytest.mark.parametrize(
    ("schema", "able"),
    [
        ({"type": "integer"}, {"xgrammar", "outlines"}),
        ({"type": "integer", "minimum": 1}, {"xgrammar"}),
        ({"properties": {"uniqueItems": {}}}, {"xgrammar", "outlines"}),
        ({"items": {"uniqueItems": True}}, set()),
        (REF, {"xgrammar", "outlines"}),
        (REF | {"minimum": 1}, set()),
        ({"$ref": "other.json"}, set()),
        ({"enum": ["a"], "type": "string"}, {"xgrammar", "outlines"}),
        ({"enum": ["a", 1], "type": "string"}, set()),
        ({"anyOf": [{"type": "null"}], "type": "string"}, set()),
        (True, {"xgrammar", "outlines"}),
        ({"properties": {"a": False}}, set()),
    ],
)
def test_by_keywords(schema: Any, able: set[str]) -> None:
    request = ConstraintRequest(Form.JSON_SCHEMA, json.dumps(schema))
    assert {name for name in ("xgrammar", "outlines") if may_express(name, request)} == able
