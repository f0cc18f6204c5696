"""Commands for the engines' prefix caches."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query


async def reset_prefix_cache(request: Request) -> Response:
    """Makes later requests find nothing computed so far. Running ones keep their blocks unless they are preempted.

    Host memory is cleared along with the device; there is no external cache that `reset_external` could apply to.
    """
    query = Query(request, "reset_running_requests", "reset_external")
    query.boolean("reset_external", False)
    preempts = query.boolean("reset_running_requests", False)
    return outcomes_response(await query.administration.reset_prefix_cache(preempts=preempts), success=True)


ROUTES: Sequence[Route] = (Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),)
