"""Server-sent events, of any API."""

from __future__ import annotations

from typing import Any

import msgspec

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(content: Any, name: str = "") -> bytes:
    """One event.

    Args:
        name: by which clients of some APIs tell events apart; empty for events without one.
    """
    data = b"data: " + _encoder.encode(content) + b"\n\n"
    return b"event: " + name.encode() + b"\n" + data if name else data
