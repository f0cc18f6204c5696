"""JSON Schema limits of fields beyond their types: the same bounds that requests are checked against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quire.bounds import (
    CACHE_SALT_PATTERN,
    LOGIT_BIAS_BOUND,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_CALLER_NAME_LENGTH,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_MESSAGES,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOLS,
    PRIORITY_BOUND,
    REQUEST_ID_PATTERN,
    TOOL_NAME_PATTERN,
    Bound,
)
from quire.compatibility.refused_fields import REFUSED
from quire.sampling import SAMPLING_BOUNDS

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_TOKEN_ID: Schema = {"type": "integer", "minimum": 0}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "minLength": 1},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, _OBJECT]}}, {"type": "null"}]},
    },
}
_PARAMETERS: Schema = {"type": "object", "properties": {"type": {"const": "object"}}}
_TOOL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": f"^{TOOL_NAME_PATTERN}$"},
                "parameters": {"anyOf": [_PARAMETERS, {"type": "null"}]},
            },
        },
    },
}


def add_limits(fields: dict[str, dict[str, Any]]) -> None:
    """Adds the limits to the schemas in place.

    Args:
        fields: name → schema of its type. If a field is a list of conversations, the limits apply to each conversation.
            Fields with a struct of their own are skipped: they are not the fields that the limits describe.
    """
    for name, limit in limits().items():
        if name in fields and "$ref" not in str(fields[name]):
            field = fields[name]
            (field["items"] if field.get("items", {}).get("type") == "array" else field).update(limit)


def limits() -> dict[str, Schema]:
    """Returns field → its limits. JSON Schema keywords do not apply to values of other types, such as null."""
    name = {"maxLength": MAX_CALLER_NAME_LENGTH}
    return {
        **{field: {"enum": [None, *refused.neutral]} for field, refused in REFUSED.items()},
        **{field: _interval(bound) for field, bound in SAMPLING_BOUNDS.items()},
        "top_k": {**_interval(SAMPLING_BOUNDS["top_k"]), "minimum": -1},
        "priority": _interval(PRIORITY_BOUND),
        "logprobs": {"minimum": -1},
        "top_logprobs": {"minimum": -1},
        "prompt_logprobs": {"minimum": -1},
        "stream_interval": {"minimum": 1},
        "stop": {**_texts(MAX_STOP_STRINGS, MAX_STOP_STRING_LENGTH), "maxLength": MAX_STOP_STRING_LENGTH},
        "bad_words": _texts(MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH),
        "stop_token_ids": {"items": _TOKEN_ID, "maxItems": MAX_STOP_TOKEN_IDS},
        "logprob_token_ids": {"items": _TOKEN_ID, "maxItems": MAX_LOGPROB_TOKEN_IDS},
        "allowed_token_ids": {"items": _TOKEN_ID, "minItems": 1},
        "logit_bias": {
            "maxProperties": MAX_LOGIT_BIAS_ENTRIES,
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", **_interval(LOGIT_BIAS_BOUND)},
        },
        "cache_salt": {"pattern": f"^{CACHE_SALT_PATTERN}$"},
        **dict.fromkeys(("session_id", "prompt_cache_key", "user"), name),
        "request_id": {"pattern": f"^{REQUEST_ID_PATTERN}$"},
        "messages": {"items": _MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
        "tools": {"items": _TOOL, "minItems": 1, "maxItems": MAX_TOOLS},
        "tokens": {"items": _TOKEN_ID},
        "file": {"contentEncoding": "binary", "contentMediaType": "audio/*"},  # in a form, it is not in base64
    }


def _interval(bound: Bound) -> Schema:
    low = {"exclusiveMinimum" if bound.minimum_excluded else "minimum": bound.minimum}
    return {**low, "maximum": bound.maximum} if math.isfinite(bound.maximum) else low


def _texts(most: int, length: int) -> Schema:
    return {"minLength": 1, "items": {"type": "string", "minLength": 1, "maxLength": length}, "maxItems": most}
