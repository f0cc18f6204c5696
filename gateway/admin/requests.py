"""Requests that an operator ends."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from gateway.context import context_of
from gateway.endpoints.body import read_json
from gateway.protocol.admin import AbortRequests
from quire.errors import InvalidRequest

_MOST_IDS = 1024
# What stands before a request's own name in an answer's id.
_PREFIX = re.compile(r"^(chatcmpl|cmpl|generate|resp|msg)[-_]")


async def abort_requests(request: Request) -> Response:
    """Ends requests of anybody, wherever they run, with what they have. Ids that nobody has are no error.

    Raises:
        InvalidRequest: there are too many ids.
    """
    query = Query(request)
    body = await read_json(request, AbortRequests)
    if len(body.request_ids) > _MOST_IDS:
        raise InvalidRequest(
            f"{len(body.request_ids)} request_ids are given; at most {_MOST_IDS} are taken.", parameter="request_ids"
        )
    names = {name for given in body.request_ids for name in (given, _PREFIX.sub("", given))}
    outcomes = await query.administration.abort(sorted(names))
    ended = context_of(request).pipeline.abort(names)  # those that wait in a router
    return outcomes_response(outcomes, aborted=max(ended, sum(worker.aborted_requests for worker in outcomes.workers)))


ROUTES: Sequence[Route] = (Route("/abort_requests", abort_requests, methods=["POST"]),)
