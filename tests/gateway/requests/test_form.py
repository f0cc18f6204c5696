"""Forms with files, as different clients write them, and broken ones."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.requests.form import MAX_PARTS, Part, parse_form
from quire.errors import InvalidRequest

TYPE = "multipart/form-data; boundary=xx"


def form(*parts: bytes, end: bytes = b"--xx--\r\n") -> bytes:
    return b"".join(b"--xx\r\n" + part + b"\r\n" for part in parts) + end


def part(head: str, content: bytes = b"a") -> bytes:
    return f"Content-Disposition: form-data; {head}\r\n\r\n".encode() + content


@given(st.binary(max_size=50), st.text('a -"ä漢\r\n', max_size=20))
def test_what_httpx_sends(content: bytes, text: str) -> None:
    fields = {"model": text, "timestamp_granularities[]": ["word", "segment"]}
    sent = httpx.Request("POST", "http://a/", data=fields, files={"file": ('ä "b".wav', content, "audio/wav")})
    assert parse_form(sent.read(), sent.headers["content-type"]) == [
        Part("model", text.encode()), Part("timestamp_granularities[]", b"word"),
        Part("timestamp_granularities[]", b"segment"), Part("file", content, is_file=True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "name", "is_file"),
    [
        ('name="ä"', "ä", False), ("name=a", "a", False), ('NAME="a"', "a", False), (r'name="a\"b"', 'a"b', False),
        ('name="a"; filename="b.wav"', "a", True), ('filename="name=x"; name="a"', "a", True),
        ("name=\"a\"; filename*=utf-8''%C3%A4.wav", "a", True), ('name="a"; filename=""', "a", True),
        ('name="a"\r\nContent-Type: text/plain; charset=utf-8', "a", False), ('  name="a" ', "a", False),
    ],
)  # fmt: skip
def test_how_parts_are_named(head: str, name: str, is_file: bool) -> None:
    for body in (form(part(head)), b"something before\r\n" + form(part(head)) + b"and after"):
        assert parse_form(body, TYPE) == [Part(name, b"a", is_file)]


@pytest.mark.parametrize("kind", ['multipart/form-data; boundary="xx"', "multipart/form-data; charset=a; Boundary=xx"])
def test_how_boundaries_are_named(kind: str) -> None:
    assert parse_form(form(part('name="a"')), kind) == [Part("a", b"a")]


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\r\n\r\n", b"\n--xx", b"\r\n--x", b"\n--xx\n", b"a\r\n--\r\n"])
def test_content_may_look_like_a_form(content: bytes) -> None:
    assert parse_form(form(part('name="a"', content)), TYPE) == [Part("a", content)]


def test_a_form_may_be_empty() -> None:
    assert parse_form(form(), TYPE) == []
    assert len(parse_form(form(*[part('name="a"')] * MAX_PARTS), TYPE)) == MAX_PARTS


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (form(part('name="a"')), "multipart/form-data", "has no boundary"),
        (form(part('name="a"')), 'multipart/form-data; boundary=""', "has no boundary"),
        (form(part('name="a"')), "multipart/form-data; boundary=yy", "not complete: after part 0"),
        (b"", TYPE, "not complete: after part 0"),
        (form(part('name="a"'), end=b""), TYPE, "not complete: after part 1"),
        (form(part('name="a"'), end=b"--xx"), TYPE, "Part 1 of the form has no header"),
        (form(part('filename="a"')), TYPE, "Part 0 of the form has no header"),
        (form(part('name=""')), TYPE, "Part 0 of the form has no header"),
        (form(b"Content-Type: text/plain\r\n\r\na"), TYPE, "Part 0 of the form has no header"),
        (form(part('name="a"'), b"no head"), TYPE, "Part 1 of the form has no header"),
        (form(b'Content-Disposition: form-data; name="\xff"\r\n\r\na'), TYPE, "Part 0 of the form has no header"),
        (form(part(f'name="{"a" * 9000}"')), TYPE, "Part 0 of the form has no header"),
        (form(*[part('name="a"')] * (MAX_PARTS + 1)), TYPE, f"more than {MAX_PARTS} parts"),
        (form(*[part('name="a"')] * 5000), TYPE, f"more than {MAX_PARTS} parts"),
    ],
)
def test_broken_forms(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_form(body, kind)


@given(st.binary(max_size=200))
def test_nothing_else_goes_wrong(noise: bytes) -> None:
    for body in (noise, b"--xx" + noise, form(part('name="a"') + noise), form(noise)):
        with contextlib.suppress(InvalidRequest):
            parse_form(body, TYPE)
