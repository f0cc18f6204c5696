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
from gateway.endpoints.aborted import read_request_ids

# What stands before a request's own name in an answer's id.
_PREFIX = re.compile(r"^(chatcmpl|cmpl|generate|resp|msg)[-_]")


async def abort_requests(request: Request) -> Response:
    """Ends requests of anybody, wherever they run, with what they have. Ids that nobody has are no error."""
    query = Query(request)
    names = {name for given in await read_request_ids(request) for name in (given, _PREFIX.sub("", given))}
    outcomes = await query.administration.abort(sorted(names))
    ended = context_of(request).pipeline.abort(names)  # those that wait in a router
    return outcomes_response(outcomes, aborted=max(ended, sum(worker.aborted_requests for worker in outcomes.workers)))


ROUTES: Sequence[Route] = (Route("/abort_requests", abort_requests, methods=["POST"]),)
