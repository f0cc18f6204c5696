"""Grammars for tool arguments that are not JSON accept exactly what fits the schema."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gateway.answers.context import Tool
from quire.structured.base import Backend, ConstraintRequest, Form
from quire.structured.registry import make_backend
from quire.structured.vocabulary import Vocabulary, make_vocabulary
from quire.tokenizer.files import read_tokenizer_files
from tests.support.for_each import for_each
from tests.support.parser_classes import tool_parser
from tests.support.tool_formats import Call, Turn, render

PYTHON = ("pythonic", "llama4_pythonic", "olmo3", "lfm2")
FAMILIES = ("qwen3_coder", "seed_oss", "minimax_m2", "minimax_m3", "minicpm5", "step3", "deepseek_v32", "deepseek_v4",
            "deepseek_v41", "kimi_k3", "glm45", "glm47", "hy_v4", "solar_open2", "gemma4", *PYTHON)  # fmt: skip
TOOL = Tool(
    "f",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "unit": {"$ref": "#/$defs/unit"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/unit"}},
        },
        "required": ["text", "count"],
        "$defs": {"unit": {"enum": ["m", "km"]}},
    },
)
WHOLE = {"text": "a <b> 'c'\n\\", "unit": "km", "code": "DE", "count": 3, "tags": ["m", "km"]}
FREE = Tool("f", {"type": "object"})
OPTIONAL = Tool("f", {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}})


@cache
def vocabulary() -> Vocabulary:
    return make_vocabulary(read_tokenizer_files(Path(str(resources.files("demo_model") / "quire-demo"))))


@cache
def backend() -> Backend:
    return make_backend("guidance", vocabulary())


def may_write(family: str, tool: Tool, arguments: dict[str, Any]) -> bool:
    """Whether the grammar of the family, restricted to the tool's schema, accepts this call."""
    parser = tool_parser(family)
    syntax, form = parser.syntax(tool.name), parser.argument_form(tool)
    assert syntax is not None
    tag = {"type": "tag", "begin": syntax.before + syntax.begin, "content": form, "end": syntax.end + syntax.after}
    request = ConstraintRequest(Form.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": tag}))
    matcher = backend().read(backend().compile(request)).matcher()
    if family in ("minimax_m3", "minicpm5"):  # lists are JSON
        arguments = {name: json.dumps(value) if isinstance(value, list) else value for name, value in arguments.items()}
    text = render(family, Turn("", (Call(tool.name, arguments),))).lstrip("\n")
    if family in PYTHON:
        row = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
        text = f"{syntax.before}{syntax.begin}{row}{syntax.end}{syntax.after}"
    if family == "gemma4":  # strings in lists are JSON
        text = text.replace('[<|"|>', '["').replace('<|"|>]', '"]').replace('<|"|>,<|"|>', '","')
    token_ids = vocabulary().encode(text.encode())
    return matcher.accept(token_ids) == len(token_ids) and matcher.is_complete


@pytest.mark.parametrize("family", FAMILIES)
def test_what_fits_the_schema_can_be_written(family: str) -> None:
    assert may_write(family, TOOL, WHOLE)
    assert may_write(family, TOOL, {"text": "", "count": -1})
    assert may_write(family, TOOL, {"text": "x", "code": "DE", "count": 0})
    assert may_write(family, Tool("f"), {})
    for names in ("", "a", "c", "ab", "bc", "ac", "abc"):
        assert may_write(family, OPTIONAL, dict.fromkeys(names, 1)), names


@pytest.mark.parametrize("family", FAMILIES)
@for_each(
    "arguments",
    [
        {"text": "x"},
        {"count": 1},
        {"text": "x", "count": "many"},
        {"text": "x", "count": 1.5},
        {"text": "x", "unit": "cm", "count": 1},
        {"text": "x", "code": "DEU", "count": 1},
        {"text": "x", "count": 1, "tags": ["cm"]},
        {"text": "x", "count": 1, "further": 1},
    ],
)
def test_what_does_not_fit_the_schema_cannot(family: str, arguments: dict[str, Any]) -> None:
    assert not may_write(family, TOOL, arguments)
    assert not may_write(family, Tool("f"), arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_that_names_no_parameters_may_get_any(family: str) -> None:
    assert may_write(family, FREE, {})
    assert may_write(family, FREE, {"a": "x", "b": [1]})


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "string", "minLength": 2}, "ab", "a"),
        ({"type": "string", "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "pattern": "b+"}, "abbc", "ac"),
        ({"type": "string", "pattern": "^.+$"}, "a", None),
        ({"type": "string", "pattern": "^[^x]\\S$"}, "ab", None),
        ({"const": "a/b"}, "a/b", "a"),
        ({"type": ["string", "null"], "enum": ["x"]}, "x", "y"),
        ({"$ref": "#/properties/a"}, "any", None),
        ({"type": ["integer", "boolean"]}, True, "x"),
    ],
)
def test_texts_are_bound_as_far_as_the_schema_goes(schema: dict[str, Any], fits: Any, does_not: Any) -> None:
    tool = Tool("f", {"type": "object", "properties": {"a": schema}, "required": ["a"]})
    assert may_write("glm47", tool, {"a": fits})
    assert does_not is None or not may_write("glm47", tool, {"a": does_not})
