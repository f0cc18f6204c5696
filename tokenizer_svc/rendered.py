"""What rendering a conversation comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and as tokens where they are known already."""

    text: str
    token_ids: tuple[int, ...] | None = None
