"""Digests of the served weights, by which a trainer finds out whether all of them have arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from gateway.admin.weights import check_one_model
from gateway.endpoints.body import read_json
from gateway.protocol.admin import CheckWeights
from quire.errors import Conflict, InvalidRequest

_MOST_NAMED = 5


async def weight_checker(request: Request) -> Response:
    """Returns the digests of all tensors, or compares them with others.

    Raises:
        InvalidRequest: a field is invalid, or the workers serve several models.
        Conflict: the workers serve different weights.
    """
    query, body = Query(request), await read_json(request, CheckWeights)
    check_one_model(request, query)
    if body.action == "reset":
        raise InvalidRequest(
            "action reset is not supported: weights are replaced as a whole, so nothing of the old ones can stay. To "
            "see that an update arrives, compare with the digests of the tensors that are sent.",
            parameter="action",
        )
    if (body.action == "compare") is (body.baseline is None):
        raise InvalidRequest("baseline goes with the action compare, and only with it.", parameter="baseline")
    if body.baseline is not None:
        return await compared(query, body.baseline)
    outcomes, digests = await query.administration.digest_weights()
    if outcomes.errors:
        return outcomes_response(outcomes)
    first, *others = digests.values()
    if differing := sorted({name for each in others for name in _mismatches(first, each)}):
        raise Conflict(
            f"The workers serve different weights: {', '.join(differing[:_MOST_NAMED])}"
            f"{'' if len(differing) <= _MOST_NAMED else ' and others'}. Name one with ?worker=host:port."
        )
    return outcomes_response(outcomes, checksums=first)


async def compared(query: Query, baseline: Mapping[str, str], **told: Any) -> Response:
    """Returns the names of the tensors whose digests differ, or are missing on either side, on any worker."""
    outcomes, digests = await query.administration.digest_weights()
    differing = {name for each in digests.values() for name in _mismatches(baseline, each)}
    return outcomes_response(outcomes, **told, match=not differing, mismatches=sorted(differing))


def _mismatches(some: Mapping[str, str], others: Mapping[str, str]) -> set[str]:
    return {name for name in some.keys() | others.keys() if some.get(name) != others.get(name)}


ROUTES: Sequence[Route] = (Route("/weight_checker", weight_checker, methods=["POST"]),)
