"""Lets an operator abort requests."""

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

# Prefixes of a request id in the id of an answer.
_PREFIX = re.compile(r"^(chatcmpl|cmpl|generate|resp|msg)[-_]")


async def abort_requests(request: Request) -> Response:
    """Aborts requests of any tenant, wherever they run, keeping their output so far. Unknown ids are ignored."""
    query = Query(request)
    names = {name for given in await read_request_ids(request) for name in (given, _PREFIX.sub("", given))}
    outcomes = await query.administration.abort(sorted(names))
    ended = context_of(request).pipeline.abort(names)  # includes requests that wait in a router
    return outcomes_response(outcomes, aborted=max(ended, sum(worker.aborted_requests for worker in outcomes.workers)))


ROUTES: Sequence[Route] = (Route("/abort_requests", abort_requests, methods=["POST"]),)
