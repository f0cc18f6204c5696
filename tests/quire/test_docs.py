"""The committed reference page is the one that the options make."""

from __future__ import annotations

from pathlib import Path

from quire.docs import options_page


def test_the_options_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "options.md"
    assert page.read_text(encoding="utf-8") == options_page(), "run `make docs`"
