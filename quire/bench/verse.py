"""The package's verse, from which prompts of ordinary words are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_FILE = Path(__file__).with_name("verse.txt")


def verse(path: str | None = None) -> Sequence[str]:
    """The non-empty lines of the verse, or of another file."""
    text = (Path(path) if path else _FILE).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
