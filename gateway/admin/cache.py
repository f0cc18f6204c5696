"""What engines keep of requests that are over."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query


async def reset_prefix_cache(request: Request) -> Response:
    """No later request finds what was computed so far. Running ones keep it, unless they are to be computed anew.

    Host memory is emptied with the device; there is nothing further outside that `reset_external` could mean.
    """
    query = Query(request, "reset_running_requests", "reset_external")
    query.boolean("reset_external", False)
    preempts = query.boolean("reset_running_requests", False)
    return outcomes_response(await query.administration.reset_prefix_cache(preempts=preempts), success=True)


ROUTES: Sequence[Route] = (Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),)
