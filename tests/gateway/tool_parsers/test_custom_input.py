"""The text for a custom tool, however its call's arguments are cut and written."""

from __future__ import annotations

import json

import pytest

from gateway.tool_parsers.custom_input import CustomInput

TEXTS = ["", "ab", 'say "hi"\n\t\\ \b\f\r/', "é€😀", "*** Begin Patch\n+\\d+\n*** End Patch"]


def read(pieces: list[str]) -> str:
    reader = CustomInput()
    return "".join([*(reader.feed(piece) for piece in pieces), reader.end()])


def cut(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_it_is_the_string_of_the_parameter(text: str, is_ascii: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    for size in (1, 2, 3, 1000):
        assert read(cut(arguments, size)) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (r' { "input" : "a"} ', "a"),
        (r'{"input": "\d \uzz\x"}', r"\d \uzz\x"),  # escapes of other languages
        (r'{"input": "\ud83d."}', "\ufffd."),
        (r'{"input": "\ud83d\u0041"}', "\ufffdA"),
        (r'{"input": "cut \u00', "cut "),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("", ""),
    ],
)
def test_what_models_write_besides(arguments: str, text: str) -> None:
    for size in (1, 1000):
        assert read(cut(arguments, size)) == text


def test_it_arrives_piece_by_piece() -> None:
    reader = CustomInput()
    assert [reader.feed(piece) for piece in ('{"inp', 'ut": "a', "b\\", "nc", '"', "}")] == [
        "",
        "a",
        "b",
        "\nc",
        "",
        "",
    ]
