"""The body of /abort_requests and of /inference/v1/abort_requests."""

from __future__ import annotations

import msgspec


class AbortRequests(msgspec.Struct):
    """Ids of the requests to abort."""

    request_ids: list[str]
