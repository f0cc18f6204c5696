"""Opens the store that the options name."""

from __future__ import annotations

from pathlib import Path

from gateway.response_store.base import ResponseStore
from gateway.response_store.sqlite import SqliteStore
from quire.extras import needed
from quire.options.responses import SQLITE, ResponsesOptions


def open_store(options: ResponsesOptions) -> ResponseStore | None:
    """Returns the store; None if the options name none.

    Raises:
        StartupError: it cannot be opened, or a required package is missing.
    """
    url, bounds = options.responses_store, (options.responses_store_max_count, options.responses_store_max_age_seconds)
    if not url:
        return None
    if url.startswith(SQLITE):
        return SqliteStore(Path(url.removeprefix(SQLITE)), *bounds)
    with needed("--responses-store redis://…", "redis", "redis"):
        from gateway.response_store.redis import RedisStore
    return RedisStore(url, *bounds)
