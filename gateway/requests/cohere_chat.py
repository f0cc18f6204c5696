"""Converts requests of Cohere's chat API to OpenAI chat requests, which the rest of the gateway works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.cohere_chat import CohereChatRequest, CohereDocument, CohereFormat
from gateway.protocol.constraints import JsonSchemaFormat, ResponseFormat
from gateway.requests.documents import document_text
from gateway.requests.template_variables import thinking_switched
from quire.errors import InvalidRequest

# Chat field → its name in this API, for error messages.
FIELDS = {
    "stop": "stop_sequences", "top_p": "p", "top_k": "k", "thinking_token_budget": "thinking.token_budget",
    "response_format.json_schema.schema": "response_format.json_schema",
}  # fmt: skip
_UNCITED = (None, "OFF", "DISABLED")
_NO_SCHEMA = (b"", b"null")
_ROLES = ("system", "user", "assistant", "tool")


def chat_of(body: CohereChatRequest) -> ChatCompletionRequest:
    """Converts a conversation to continue into a chat request.

    Raises:
        InvalidRequest: something in it is malformed, or not supported by Quire.
    """
    if body.citation_options and body.citation_options.mode not in _UNCITED:
        raise InvalidRequest(
            f"citation_options.mode is {body.citation_options.mode!r}, but answers have no citations: leave it out, or "
            "set it to OFF.", parameter="citation_options",
        )  # fmt: skip
    thinking = body.thinking
    variables: dict[str, Any] = thinking_switched(thinking.type == "enabled") if thinking else {}
    if body.safety_mode is not None:
        variables["safety_mode"] = body.safety_mode
    return ChatCompletionRequest(
        model=body.model,
        messages=_messages(body.messages),
        stream=body.stream,
        tools=_tools(body.tools, is_strict=body.strict_tools),
        tool_choice=body.tool_choice and body.tool_choice.lower(),
        documents=[_document(document) for document in body.documents or ()] or None,
        response_format=_format(body.response_format) if body.response_format else None,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        seed=body.seed,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        top_k=body.k,
        top_p=body.p,
        logprobs=body.logprobs,
        thinking_token_budget=thinking.token_budget if thinking and thinking.type == "enabled" else None,
        priority=body.priority,
        chat_template_kwargs=variables or None,
    )


def _tools(tools: Sequence[dict[str, Any]] | None, *, is_strict: bool) -> list[dict[str, Any]] | None:
    if not (tools and is_strict):
        return list(tools) if tools else None
    return [
        tool | {"function": tool["function"] | {"strict": True}} if isinstance(tool.get("function"), dict) else tool
        for tool in tools
    ]


def _format(wanted: CohereFormat) -> ResponseFormat:
    if wanted.type == "text" or bytes(wanted.json_schema) in _NO_SCHEMA:
        return ResponseFormat(wanted.type)
    return ResponseFormat("json_schema", JsonSchemaFormat("answer", schema=wanted.json_schema))


def _document(document: str | CohereDocument) -> dict[str, str]:
    """A document as chat templates read it."""
    if isinstance(document, str):
        return {"text": document}
    data = {"text": document.data} if isinstance(document.data, str) else document.data
    texts = {name: value if isinstance(value, str) else _json(value) for name, value in data.items()}
    return texts | ({"id": document.id} if document.id is not None else {})


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidRequest("A document is nested too deeply.", parameter="documents") from None


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    called: dict[str, str] = {}  # call id → tool name
    found: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        place, role = f"messages[{index}]", message.get("role")
        match role:
            case "system" | "user":
                found.append({"role": role, "content": message.get("content")})
            case "assistant":
                found.append(_assistant(message, place, called))
            case "tool":
                found.append(_result(message, place, called))
            case _:
                raise InvalidRequest(
                    f"{place}.role is {str(role)[:50]!r}; it must be one of {', '.join(_ROLES)}.", parameter="messages"
                )
    return found


def _assistant(message: Mapping[str, Any], place: str, called: dict[str, str]) -> dict[str, Any]:
    """A turn of the assistant. What it planned before its calls is its text; what it cited is left out."""
    texts, thoughts = [message["tool_plan"]] if isinstance(message.get("tool_plan"), str) else [], []
    for where, part in _parts(message.get("content") or [], f"{place}.content"):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case _:
                raise InvalidRequest(f"{where} must be a part of type text or thinking.", parameter="messages")
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls := message.get("tool_calls"):
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"id": str(identity), "function": {"name": str(name)}}:
                    called[identity] = name
        said |= {"tool_calls": calls, "content": said["content"] or None}
    return said


def _result(message: Mapping[str, Any], place: str, called: Mapping[str, str]) -> dict[str, Any]:
    call = message.get("tool_call_id")
    if not isinstance(call, str) or call not in called:
        raise InvalidRequest(
            f"{place}.tool_call_id is {str(call)[:64]!r}, which no earlier call has.", parameter="messages"
        )
    texts = []
    for where, part in _parts(message.get("content"), f"{place}.content"):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "document", "document": {"data": data, **others}}:
                texts.append(document_text(data if isinstance(data, str) else _json(data), str(others.get("id") or "")))
            case _:
                raise InvalidRequest(f"{where} must be a part of type text or document.", parameter="messages")
    return {"role": "tool", "tool_call_id": call, "name": called[call], "content": "\n".join(texts)}


def _parts(content: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{place} must be a string or a list of parts.", parameter="messages")
    return [(f"{place}[{index}]", part) for index, part in enumerate(content)]
