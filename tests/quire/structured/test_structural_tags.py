"""Structural tags in both forms: what they allow, what they reject, and errors in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form, Grammar, Inexpressible
from quire.structured.guidance import GuidanceBackend
from tests.support.grammars import spell, vocabulary

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
VALUE = {"type": "json_schema", "json_schema": SCHEMA}
CALL = {"type": "tag", "begin": "<call f>", "content": VALUE, "end": "</call>"}
OTHER = {"type": "tag", "begin": "<call g>", "content": {"type": "any_text"}, "end": "</call>"}
F, G = '<call f>{"a": 1}</call>', "<call g>any < text</call>"
TRIGGERED = {"type": "triggered_tags", "triggers": ["<call"], "tags": [CALL, OTHER]}
ROW = {"type": "tags_with_separator", "tags": [CALL, OTHER], "separator": ", "}


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    return GuidanceBackend(vocabulary())


def grammar_of(backend: GuidanceBackend, tag: Any, **switches: bool) -> Grammar:
    return backend.read(backend.compile(ConstraintRequest(Form.STRUCTURAL_TAG, json.dumps(tag), **switches)))


def takes(grammar: Grammar, token_ids: list[int]) -> bool:
    matcher = grammar.matcher()
    return matcher.accept(token_ids) == len(token_ids) and matcher.is_complete


# format, texts that it accepts, texts that it rejects
FORMS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "text": ({"type": "const_string", "value": 'a "b"\n'}, ['a "b"\n'], ["", "a"]),
    "schema": (VALUE, ['{"a": 7}'], ["", "{}", '{"a": "7"}']),
    "regex": ({"type": "regex", "pattern": "[a-c/]+\\/\n?"}, ["ab/", "//\n"], ["ab", "d/"]),
    "any text": ({"type": "any_text"}, ["", "x\ny", "<call f>"], []),
    "sequence": (
        {"type": "sequence", "elements": [{"type": "const_string", "value": "a: "}, VALUE]}, ['a: {"a": 1}'], ["a: "]
    ),
    "or": ({"type": "or", "elements": [{"type": "const_string", "value": "no"}, VALUE]}, ["no", '{"a": 1}'], ["", "n"]),
    "tag": (CALL, [F], ["", F + F, "<call f>"]),
    "tag around text": (OTHER, [G, "<call g></call>"], ["<call g>", G + "x"]),
    "triggered": (
        TRIGGERED, ["", "plain < text", F, f"so: {F} and {G}.", F + F],
        ["<call", "<call h>", "so: <call f>{}</call>", F[:-1]],
    ),
    "triggered, once": (TRIGGERED | {"stop_after_first": True}, ["", "text", F, "so: " + F], [F + F, F + "."]),
    "triggered, at once": (TRIGGERED | {"at_least_one": True}, [F, f"{F} and {G}."], ["", "text", "so: " + F]),
    "row": (ROW, ["", F, f"{F}, {G}"], [F + F, "text", F + ", "]),
    "row, some": (ROW | {"at_least_one": True}, [F, f"{F}, {G}"], [""]),
    "row, one": (ROW | {"at_least_one": True, "stop_after_first": True}, [F, G], ["", f"{F}, {G}"]),
    "row without separator": (ROW | {"separator": ""}, ["", F + F], [f"{F}, {F}"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_what_a_form_lets_through(backend: GuidanceBackend, name: str) -> None:
    form, right, wrong = FORMS[name]
    grammar = grammar_of(backend, {"type": "structural_tag", "format": form})
    assert [text for text in right if not takes(grammar, spell(text))] == []
    assert [text for text in wrong if takes(grammar, spell(text))] == []


def test_structures_and_triggers_are_the_older_form(backend: GuidanceBackend) -> None:
    structures = [{"begin": "<call f>", "schema": SCHEMA, "end": "</call>"}, {"begin": "<call g>", "schema": True}]
    grammar = grammar_of(backend, {"structures": structures, "triggers": ["<call"]})
    for text in ("", "text", f"so: {F}", "<call g>[1]<call f>" + F[8:]):
        assert takes(grammar, spell(text)), text
    for text in ("<call", "<call f>[1]</call>", "<call h>1"):
        assert not takes(grammar, spell(text)), text


def test_switches_hold_for_schemas_inside(backend: GuidanceBackend) -> None:
    call = CALL | {"content": {"type": "json_schema", "json_schema": {"properties": {"a": {}}}}}
    grammar = grammar_of(backend, {"format": {"type": "tag"} | call}, disable_additional_properties=True,
                         disable_any_whitespace=True)  # fmt: skip
    assert takes(grammar, spell('<call f>{"a":1}</call>'))
    assert not takes(grammar, spell('<call f>{"a": 1}</call>'))
    assert not takes(grammar, spell('<call f>{"b":1}</call>'))


def test_special_tokens_may_stand_for_themselves(backend: GuidanceBackend) -> None:
    """A special token may be used where no ordinary token spells its text, both as a trigger and inside."""
    special = vocabulary().names["<|im_start|>"]
    tag = {"begin": "<|im_start|>[", "content": VALUE, "end": "]<|im_start|>"}
    form = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [tag]}
    grammar = grammar_of(backend, {"format": form})
    inside = spell('[{"a": 1}]')
    for mark in ([special], spell("<|im_start|>")):
        assert takes(grammar, [*spell("so: "), *mark, *inside, *mark, *spell(" end")])
        assert not takes(grammar, [*mark, *spell("x")])
    other = vocabulary().names["<|endoftext|>"]
    assert not takes(grammar, [other])


MALFORMED: list[tuple[Any, str]] = [
    ([], "an object"),
    ({}, "format.type is 'None'"),
    ({"format": {"type": "poem"}}, "'poem'; it must be one of const_string"),
    ({"format": {"type": ["or"]}}, "one of const_string"),
    ({"format": {"type": "const_string"}}, "format.value must be a string"),
    ({"format": {"type": "json_schema", "json_schema": []}}, "format.json_schema is not a JSON schema"),
    ({"format": {"type": "json_schema", "json_schema": {"type": "strange"}}}, "cannot be followed"),
    ({"format": {"type": "or", "elements": []}}, "format.elements must be a non-empty list"),
    ({"format": {"type": "or", "elements": [VALUE, {"type": "tag"}]}}, r"format.elements\[1\].begin"),
    ({"format": TRIGGERED | {"triggers": [""]}}, r"format.triggers\[0\] must be a non-empty string"),
    ({"format": TRIGGERED | {"triggers": ["x"]}}, r"format.tags\[0\].begin does not start with any"),
    ({"format": TRIGGERED | {"tags": [7]}}, r"format.tags\[0\] must be an object"),
    ({"format": {"type": "regex", "pattern": "(a"}}, "cannot be followed"),
    ({"structures": {}, "triggers": ["a"]}, "structures must be a non-empty list"),
    ({"structures": [1], "triggers": ["a"]}, r"structures\[0\] must be an object"),
    ({"structures": [{"begin": "<call"}], "triggers": ["<call"]}, "json_schema is not a JSON schema"),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "part"), MALFORMED)
def test_what_is_malformed_is_told_with_its_place(backend: GuidanceBackend, tag: Any, part: str) -> None:
    with pytest.raises(InvalidRequest, match=part):
        grammar_of(backend, tag)


def test_nesting_has_a_bound(backend: GuidanceBackend) -> None:
    form: dict[str, Any] = VALUE
    for _ in range(30):
        form = {"type": "sequence", "elements": [form]}
    with pytest.raises(InvalidRequest, match="nested more than 16 levels deep"):
        grammar_of(backend, {"format": form})


def test_what_other_backends_know_is_left_to_them(backend: GuidanceBackend) -> None:
    with pytest.raises(Inexpressible, match="qwen_xml_parameter"):
        grammar_of(backend, {"format": {"type": "qwen_xml_parameter", "json_schema": {}}})
