"""Commands for the caches of the engines and of the tokenizer services."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from gateway.context import context_of
from gateway.errors import json_response
from quire.errors import InvalidRequest


async def reset_prefix_cache(request: Request) -> Response:
    """Makes later requests find nothing computed so far. Running ones keep their blocks unless they are preempted.

    Host memory is cleared along with the device; there is no external cache that `reset_external` could apply to.
    """
    query = Query(request, "reset_running_requests", "reset_external")
    query.boolean("reset_external", False)
    preempts = query.boolean("reset_running_requests", False)
    return outcomes_response(await query.administration.reset_prefix_cache(preempts=preempts), success=True)


async def reset_encoder_cache(request: Request) -> Response:
    """Makes the engines encode all images, videos and audio again for later requests."""
    return outcomes_response(await Query(request).administration.reset_encoder_cache(), success=True)


async def reset_mm_cache(request: Request) -> Response:
    """Makes the tokenizer services prepare all images, videos and audio again for later requests."""
    query = Query(request)
    if query.workers:
        raise InvalidRequest("worker does not apply: no worker has this cache. Leave it out.", parameter="worker")
    await context_of(request).tokenizer.reset_media_cache(query.seconds)
    return json_response({"success": True})


ROUTES: Sequence[Route] = (
    Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
    Route("/reset_encoder_cache", reset_encoder_cache, methods=["POST"]),
    Route("/reset_mm_cache", reset_mm_cache, methods=["POST"]),
)
