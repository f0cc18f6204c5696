"""Routes of vLLM and OpenAI that Quire does not provide, with the explanations and alternatives that gateways
answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TEXT_ONLY = "Models are served for text alone: nothing here reads or writes sound, images or video."
_WEIGHTS = (
    "Weights do not change while a worker runs: start workers with the new ones beside those with the old ones, under "
    "one router, and stop these."
)
_REASONS = {
    "POST /v1/audio/transcriptions, POST /v1/audio/translations, POST /v1/audio/speech, GET /v1/realtime, "
    "POST /reset_mm_cache, POST /reset_encoder_cache": _TEXT_ONLY,
    "POST /cohere/v2/chat, POST /cohere/v2/chat/render": (
        "Conversations are those of OpenAI's and Anthropic's APIs: send this one to /v1/chat/completions, /v1/messages "
        "or /v1/responses."
    ),
    "POST /v1/decisions, POST /v1/systemone": (
        "Questions with given answers go to /v1/chat/completions: structured_outputs.choice holds an answer to them, "
        "and logprobs with logprob_token_ids tell how likely each is."
    ),
    "POST /v1/responses/compact": (
        "Quire compacts no conversations, and could not read what another server has compacted. truncation: auto drops "
        "what does not fit."
    ),
    "POST /collective_rpc": (
        "Methods of workers are not called by their names: whoever reaches this route could run anything. The gRPC "
        "services of protos/quire/v1 are what workers offer."
    ),
    "POST /release_kv_cache_memory": "POST /sleep?level=1 of --admin-port gives it back, and /wake_up takes it.",
    "POST /fault_tolerance/apply, GET /fault_tolerance/status": (
        "There is nothing to apply: the router moves the requests of a worker that is lost, and the supervisor starts "
        "it again. GET /fleet tells how workers are."
    ),
    "POST /init_weight_transfer_engine, POST /start_weight_update, POST /start_draft_weight_update, "
    "POST /update_weights, POST /finish_weight_update, POST /update_weight_version, GET /weight_info, "
    "POST /weight_checker, GET /get_world_size": _WEIGHTS,
}

# Method and path → the answer.
REFUSED_ROUTES: Mapping[str, str] = MappingProxyType(
    {route: reason for routes, reason in _REASONS.items() for route in routes.split(", ")}
)
