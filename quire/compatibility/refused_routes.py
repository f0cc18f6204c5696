"""Routes of vLLM and OpenAI that Quire does not provide, with the explanations and alternatives that gateways
answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_REASONS = {
    "POST /v1/audio/speech": "Quire writes no audio.",
    "POST /fault_tolerance/apply, GET /fault_tolerance/status": (
        "There is nothing to apply: the router moves the requests of a lost worker, and the supervisor restarts it. "
        "GET /fleet reports the state of the workers."
    ),
}

# Method and path → the answer.
REFUSED_ROUTES: Mapping[str, str] = MappingProxyType(
    {route: reason for routes, reason in _REASONS.items() for route in routes.split(", ")}
)
