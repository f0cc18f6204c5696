"""Responses of admin routes: the fields that vLLM's scripts expect, and the outcome of each worker."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from gateway.errors import error_body, json_response
from gateway.services.administration import Outcomes
from quire.error_tables import mapping_of


def outcomes_response(outcomes: Outcomes, **told: Any) -> Response:
    """Returns the fields given if all workers succeeded; otherwise the first error, and which workers succeeded."""
    if not outcomes.errors:
        return json_response({**told, "workers": outcomes.workers})
    error, count = outcomes.errors[0], len(outcomes.workers)
    if count > 1:
        error.message += f" ({count - len(outcomes.errors)} of {count} workers succeeded.)"
    body = {"error": error_body(error).error, "workers": outcomes.workers}
    return json_response(body, mapping_of(error).http_status)
