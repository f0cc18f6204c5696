"""Which requests the access log shows, and what of them."""

from __future__ import annotations

import logging

from gateway.middleware.matched_route import POLLED_PATHS


class AccessLogFilter(logging.Filter):
    """Drops the requests for some paths: those that are polled would drown out all others.

    Also removes query strings from the logged path, because some clients put their API key there.
    """

    def __init__(self, dropped: str) -> None:
        """
        Args:
            dropped: paths, separated by commas, beside POLLED_PATHS. They may follow a root path.
        """
        super().__init__()
        self._dropped = (*POLLED_PATHS, *(path for each in dropped.split(",") if (path := each.strip())))

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the request is logged."""
        if isinstance(record.args, tuple) and len(record.args) > 2:
            path, _, query = str(record.args[2]).partition("?")
            record.args = (*record.args[:2], f"{path}?…" if query else path, *record.args[3:])
            return not path.endswith(self._dropped)
        return True
