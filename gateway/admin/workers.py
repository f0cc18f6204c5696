"""Lists the workers, and drains them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from gateway.context import context_of
from gateway.errors import json_response
from gateway.protocol.admin import AdminWorkers
from gateway.services.administration import Outcomes
from quire.errors import InvalidRequest


async def workers(request: Request) -> Response:
    """Lists all workers and their administrative state. One that does not answer has an error."""
    outcomes = await Query(request).administration.status()
    return json_response(AdminWorkers(context_of(request).fleet.views, list(outcomes.workers)))


async def drain(request: Request) -> Response:
    """Stops workers from taking new requests; their current requests continue."""
    return outcomes_response(await _draining(request, wanted=True), status="draining")


async def undrain(request: Request) -> Response:
    """Lets workers take new requests again."""
    return outcomes_response(await _draining(request, wanted=False), status="undrained")


async def _draining(request: Request, *, wanted: bool) -> Outcomes:
    """
    Raises:
        InvalidRequest: no worker is named; draining all of them is rarely intended.
    """
    query = Query(request)
    if not query.workers:
        known = ", ".join(view.address for view in context_of(request).fleet.views) or "none"
        raise InvalidRequest(
            f"Name the worker: {request.url.path}?worker=host:port. Known workers: {known}.", parameter="worker"
        )
    return await query.administration.drain(wanted=wanted)


ROUTES: Sequence[Route] = (
    Route("/workers", workers),
    Route("/drain", drain, methods=["POST"]),
    Route("/undrain", undrain, methods=["POST"]),
)
