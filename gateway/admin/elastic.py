"""Changes the number of data-parallel ranks, if `quire serve` runs them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.endpoints.body import read_json
from gateway.errors import json_response
from gateway.protocol.admin import ScaleElastic
from quire.errors import InvalidRequest
from quire.supervision import ScaleRequest, ask_supervisor

_MOST_SECONDS = 3600.0


async def scale(request: Request) -> Response:
    """Starts or stops engines, and responds when the requested number is reached. Requests continue meanwhile.

    Raises:
        InvalidRequest: the drain timeout is out of range; `ask_supervisor` raises others.
    """
    body = await read_json(request, ScaleElastic)
    if not 0 <= body.drain_timeout <= _MOST_SECONDS:
        raise InvalidRequest(
            f"drain_timeout is {body.drain_timeout}; it must be from 0 to {_MOST_SECONDS:g} seconds.",
            parameter="drain_timeout",
        )
    answer = await ask_supervisor(ScaleRequest(body.new_data_parallel_size, body.drain_timeout))
    size = answer.data_parallel_size
    return json_response({"message": f"There are {size} data-parallel ranks.", "data_parallel_size": size})


async def is_scaling(request: Request) -> Response:
    """Whether scaling is in progress, and the number of ranks before it."""
    answer = await ask_supervisor(ScaleRequest())
    return json_response({"is_scaling_elastic_ep": answer.scaling, "data_parallel_size": answer.data_parallel_size})


ROUTES: Sequence[Route] = (
    Route("/scale_elastic_ep", scale, methods=["POST"]),
    Route("/is_scaling_elastic_ep", is_scaling, methods=["POST"]),
)
