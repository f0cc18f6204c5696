"""The verse of the package, which prompts of ordinary words are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_FILE = Path(__file__).with_name("verse.txt")


def verse(path: str | None = None) -> Sequence[str]:
    """Its lines, or those of another file; empty ones are left out."""
    text = (Path(path) if path else _FILE).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
