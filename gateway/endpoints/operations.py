"""Health probes, version, load and metrics."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import quire
from gateway.context import context_of
from gateway.errors import HttpError, error_response, json_response
from quire.compatibility.refused_routes import REFUSED_ROUTES
from quire.errors import Unavailable
from quire.options.tokenizer_init import SKIP_FLAG


async def health(request: Request) -> Response:
    """200 while requests can be served (with a note if there is no tokenizer); otherwise 503 with the reason."""
    context = context_of(request)
    if missing := context.missing:
        return error_response(Unavailable(f"No request can be served now: {', '.join(missing)}."), request.scope)
    note = f"Token ids only: there is no tokenizer ({SKIP_FLAG})." if context.options.skip_tokenizer_init else ""
    return PlainTextResponse(note) if note else Response()


async def livez(request: Request) -> Response:
    """200 as long as this process runs."""
    return Response()


async def version(request: Request) -> Response:
    """Quire's version."""
    return json_response({"version": quire.__version__})


async def load(request: Request) -> Response:
    """Number of live requests in this gateway and in those that share its port."""
    return json_response({"server_load": request.app.state.num_live()})


async def kv_event_sources(request: Request) -> Response:
    """Where workers publish the events of their prefix caches, by index."""
    return json_response(dict(enumerate(context_of(request).fleet.kv_event_sources)))


async def scale_out_is_off(request: Request) -> Response:
    """
    Raises:
        HttpError: always.
    """
    raise HttpError(403, f"{request.url.path} is disabled: start the server with --enable-scale-out to enable it.")


async def refused(request: Request) -> Response:
    """
    Raises:
        HttpError: always; says why this route is not supported.
    """
    raise HttpError(501, REFUSED_ROUTES[f"{request.method} {request.scope['route'].path}"])


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
