"""How many data-parallel ranks there are, where `quire serve` runs them."""

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
    """Starts or ends engines, and answers when there are as many as were asked for. Requests go on meanwhile.

    Raises:
        InvalidRequest: the time to drain makes no sense; see `ask_supervisor` for what else.
    """
    body = await read_json(request, ScaleElastic)
    if not 0 <= body.drain_timeout <= _MOST_SECONDS:
        raise InvalidRequest(
            f"drain_timeout is {body.drain_timeout}; it takes 0 to {_MOST_SECONDS:g} seconds.",
            parameter="drain_timeout",
        )
    answer = await ask_supervisor(ScaleRequest(body.new_data_parallel_size, body.drain_timeout))
    size = answer.data_parallel_size
    return json_response({"message": f"There are {size} data-parallel ranks.", "data_parallel_size": size})


async def is_scaling(request: Request) -> Response:
    """Whether that is under way, and how many there were before."""
    answer = await ask_supervisor(ScaleRequest())
    return json_response({"is_scaling_elastic_ep": answer.scaling, "data_parallel_size": answer.data_parallel_size})


ROUTES: Sequence[Route] = (
    Route("/scale_elastic_ep", scale, methods=["POST"]),
    Route("/is_scaling_elastic_ep", is_scaling, methods=["POST"]),
)
