"""What an admin route answers: what vLLM's scripts look for, and each worker."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from gateway.errors import error_body, json_response
from gateway.services.administration import Outcomes
from quire.error_tables import mapping_of


def outcomes_response(outcomes: Outcomes, **told: Any) -> Response:
    """What is told where all workers have done it; otherwise the first one's error, and which of them have."""
    if not outcomes.errors:
        return json_response({**told, "workers": outcomes.workers})
    error, count = outcomes.errors[0], len(outcomes.workers)
    if count > 1:
        error.message += f" ({count - len(outcomes.errors)} of {count} workers have done it.)"
    body = {"error": error_body(error).error, "workers": outcomes.workers}
    return json_response(body, mapping_of(error).http_status)
