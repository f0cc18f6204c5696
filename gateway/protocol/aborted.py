"""Requests to end: the body of /abort_requests and of /inference/v1/abort_requests."""

from __future__ import annotations

import msgspec


class AbortRequests(msgspec.Struct):
    """By their ids."""

    request_ids: list[str]
