"""Which requests the access log shows, and what of them."""

from __future__ import annotations

import logging

# These would drown out clients' requests.
_PROBES = ("/health", "/ping", "/livez", "/readyz", "/metrics")


class AccessLogFilter(logging.Filter):
    """Drops the requests for some paths.

    Also removes query strings from the logged path, because some clients put their API key there.
    """

    def __init__(self, dropped: str) -> None:
        """
        Args:
            dropped: paths, separated by commas, beside those of probes. They may follow a root path.
        """
        super().__init__()
        self._dropped = (*_PROBES, *(path for each in dropped.split(",") if (path := each.strip())))

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the request is logged."""
        if isinstance(record.args, tuple) and len(record.args) > 2:
            path, _, query = str(record.args[2]).partition("?")
            record.args = (*record.args[:2], f"{path}?…" if query else path, *record.args[3:])
            return not path.endswith(self._dropped)
        return True
