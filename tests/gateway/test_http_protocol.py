"""Body chunks written directly, without an ASGI message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http_protocol import write_piece


def cycle(**changes: Any) -> Any:
    """A request cycle whose answer is under way with unknown length."""
    written: list[bytes] = []
    paused = changes.pop("write_paused", False)
    state = {"disconnected": False, "response_complete": False, "chunked_encoding": True, **changes}
    return SimpleNamespace(
        flow=SimpleNamespace(write_paused=paused), transport=SimpleNamespace(write=written.append), written=written,
        **state,
    )  # fmt: skip


def test_a_piece_is_a_chunk() -> None:
    answered = cycle()
    assert write_piece(answered, b"0123456789abcdef")
    assert answered.written == [b"10\r\n0123456789abcdef\r\n"]


@pytest.mark.parametrize(
    "change",
    [{"write_paused": True}, {"disconnected": True}, {"response_complete": True}, {"chunked_encoding": None}],
)
def test_what_would_wait_or_do_something_else_goes_the_usual_way(change: dict[str, Any]) -> None:
    answered = cycle(**change)
    assert not write_piece(answered, b"piece")
    assert not answered.written
