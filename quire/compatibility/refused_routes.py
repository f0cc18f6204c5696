"""Routes of vLLM and OpenAI that Quire does not provide, with the explanations and alternatives that gateways
answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_WEIGHTS = (
    "Weights are not received from other processes: save them to a folder that the engines see, and send its path to "
    "POST /update_weights_from_disk of --admin-port, with a weight_version if you like."
)
_REASONS = {
    "POST /v1/audio/speech": "Quire writes no audio.",
    "POST /cohere/v2/chat, POST /cohere/v2/chat/render": (
        "Conversations use OpenAI's and Anthropic's APIs: send this request to /v1/chat/completions, /v1/messages or "
        "/v1/responses."
    ),
    "POST /v1/responses/compact": (
        "Quire does not compact conversations, and cannot read what another server has compacted. truncation: auto "
        "drops what does not fit."
    ),
    "POST /release_kv_cache_memory": "Use POST /sleep?level=1 of --admin-port to release it, and /wake_up to allocate "
    "it again.",
    "POST /fault_tolerance/apply, GET /fault_tolerance/status": (
        "There is nothing to apply: the router moves the requests of a lost worker, and the supervisor restarts it. "
        "GET /fleet reports the state of the workers."
    ),
    "POST /init_weight_transfer_engine, POST /start_weight_update, POST /start_draft_weight_update, "
    "POST /update_weights, POST /finish_weight_update, POST /update_weight_version, GET /weight_info, "
    "POST /weight_checker, GET /get_world_size": _WEIGHTS,
}

# Method and path → the answer.
REFUSED_ROUTES: Mapping[str, str] = MappingProxyType(
    {route: reason for routes, reason in _REASONS.items() for route in routes.split(", ")}
)
