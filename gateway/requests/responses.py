"""Converts requests of OpenAI's Responses API to chat requests, which the rest of the gateway works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.constraints import JsonSchemaFormat, ResponseFormat
from gateway.protocol.responses import ResponsesFormat, ResponsesRequest
from gateway.requests.response_items import Item, messages_of
from gateway.requests.response_tools import chat_tool_choice, chat_tools
from gateway.requests.shared_fields import check_shared, shared_fields
from quire.compatibility.refused_fields import Refused
from quire.errors import InvalidRequest

LOGPROBS = "message.output_text.logprobs"
# Accepted values of `include`. All but logprobs need no work, or concern tools that Quire does not run.
_INCLUDABLE = (
    LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
_MAX_METADATA = (16, 64, 512)  # entries; characters of a key, and of a value
_REFUSED = {
    "conversation": Refused("Quire does not store conversations; use previous_response_id to continue a response"),
    "prompt": Refused("Quire does not store prompts; send them as instructions and input"),
    "context_management": Refused(
        "conversations are compacted only by /v1/responses/compact; truncation: auto drops what does not fit", ([],)
    ),
    "moderation": Refused("Quire does not moderate content"),
    "response_format": Refused("text.format replaces it"),
    "truncate_prompt_tokens": Refused("truncation replaces it"),
    "truncation_side": Refused("truncation drops the oldest tokens"),
}
# Chat field → its name in this API, for error messages.
FIELDS = {
    "messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort", "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}  # fmt: skip


def check(body: ResponsesRequest) -> None:
    """
    Raises:
        InvalidRequest: a field is malformed, or asks for something unsupported.
    """
    check_shared(body, _REFUSED)
    most = body.max_output_tokens
    if most is not None and not 1 <= most < 2**31:
        raise InvalidRequest(f"max_output_tokens is {most}; it must be at least 1.", parameter="max_output_tokens")
    for name in body.include or ():
        if name not in _INCLUDABLE:
            raise InvalidRequest(
                f"include has {name[:50]!r}; it may contain {', '.join(_INCLUDABLE)}.", parameter="include"
            )
    _check_metadata(body.metadata or {})


def _check_metadata(metadata: Mapping[str, str]) -> None:
    entries, key_length, value_length = _MAX_METADATA
    if len(metadata) > entries or any(len(k) > key_length or len(v) > value_length for k, v in metadata.items()):
        raise InvalidRequest(
            f"metadata may have at most {entries} entries, with keys of at most {key_length} and values of at most "
            f"{value_length} characters.", parameter="metadata",
        )  # fmt: skip


def chat_of(
    body: ResponsesRequest, earlier: Sequence[Item], given: Sequence[Item], max_model_len: int
) -> ChatCompletionRequest:
    """Converts a checked request to a chat request.

    Args:
        earlier: items of the conversation before the request's input.
        given: items of the request's input.
        max_model_len: of the model; with automatic truncation and no max_output_tokens, a quarter is left for the
            answer.

    Raises:
        InvalidRequest: something in it is malformed, or not supported by Quire.
    """
    most = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    room = most if most is not None else max_model_len // 4
    tools = chat_tools(body.tools or ())
    config = body.text
    logprobs = LOGPROBS in (body.include or ())
    return ChatCompletionRequest(
        messages=messages_of(body.instructions, [*earlier, *given], len(earlier)),
        max_completion_tokens=most,
        tools=tools,
        tool_choice=chat_tool_choice(body.tool_choice, bool(tools)),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(config.format) if config and config.format else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=_template_variables(body),
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        truncate_prompt_tokens=max(1, max_model_len - room) if body.truncation == "auto" else None,
        **shared_fields(body, {*_REFUSED, "chat_template_kwargs"}),
    )


def _template_variables(body: ResponsesRequest) -> dict[str, Any] | None:
    verbosity = body.text.verbosity if body.text else None
    told = {"verbosity": verbosity} if verbosity else {}
    return told | (body.chat_template_kwargs or {}) or None


def _format(asked: ResponsesFormat) -> ResponseFormat:
    if asked.type != "json_schema":
        return ResponseFormat(asked.type)
    if asked.schema is UNSET:
        raise InvalidRequest("text.format of type json_schema needs schema, a JSON schema.", parameter="text.format")
    return ResponseFormat(
        asked.type, JsonSchemaFormat(asked.name or "answer", asked.description, asked.schema, asked.strict)
    )
