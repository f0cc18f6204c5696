"""The files of the page at `/`, which hold nothing that a key protects."""

from __future__ import annotations

PAGE_ASSETS = ("page.css", "page.js", "api.js", "answer.js", "fleet.js")
