"""The committed options page matches the one generated from the options."""

from __future__ import annotations

from pathlib import Path

from quire.docs import options_page


def test_the_options_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "options.md"
    assert page.read_text(encoding="utf-8") == options_page(), "run `make docs`"
