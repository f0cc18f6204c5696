"""The wire format of server-sent events."""

from __future__ import annotations

import msgspec
import pytest

from gateway.answers.events import event


class Chunk(msgspec.Struct):
    text: str


@pytest.mark.parametrize(
    ("name", "expected"),
    [("", b'data: {"text":"a\\nb"}\n\n'), ("message_delta", b'event: message_delta\ndata: {"text":"a\\nb"}\n\n')],
)
def test_an_event_has_a_name_or_none(name: str, expected: bytes) -> None:
    assert event(Chunk("a\nb"), name) == expected
