"""Server-sent events, for any API."""

from __future__ import annotations

from typing import Any

import msgspec

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(content: Any, name: str = "") -> bytes:
    """Encodes one event.

    Args:
        name: event name, which clients of some APIs need; empty for events without one.
    """
    data = b"data: " + _encoder.encode(content) + b"\n\n"
    return b"event: " + name.encode() + b"\n" + data if name else data
