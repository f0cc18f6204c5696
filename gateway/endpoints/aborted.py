"""Reads the ids of requests to abort."""

from __future__ import annotations

from starlette.requests import Request

from gateway.endpoints.body import read_json
from gateway.protocol.aborted import AbortRequests
from quire.bounds import check_count

_MOST = 1024


async def read_request_ids(request: Request) -> frozenset[str]:
    """Returns the request ids in the body.

    Raises:
        InvalidRequest: the body is malformed, or has too many ids.
    """
    body = await read_json(request, AbortRequests)
    check_count("request_ids", len(body.request_ids), _MOST, "ids")
    return frozenset(body.request_ids)
