"""File names of the page at `/`, which are served without a key."""

from __future__ import annotations

PAGE_ASSETS = ("page.css", "page.js", "api.js", "answer.js", "fleet.js")
