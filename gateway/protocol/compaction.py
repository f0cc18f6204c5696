"""`/v1/responses/compact`: the compaction of a conversation in OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.protocol.fields import RequestFields
from gateway.protocol.responses import ResponseUsage


class CompactRequest(RequestFields, kw_only=True):
    """A conversation to compact; null means the same as absent."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    # Without effect: prompts with the same beginning share what is cached anyway, and there is only one tier.
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: str | None = None


class CompactedResponse(msgspec.Struct):
    """The user's messages, and the item that stands for everything else; see gateway/requests/summaries.py."""

    id: str
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
    object: str = "response.compaction"
