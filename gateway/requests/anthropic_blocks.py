"""Converts the conversations of Anthropic's API, which consist of blocks, to OpenAI messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.protocol.messages import CountTokensRequest
from gateway.requests.documents import document_text, file_text
from gateway.requests.messages import PlacedPart
from quire.errors import InvalidRequest

Block = Mapping[str, Any]
Part = dict[str, Any]
_ROLES = {
    "user": "user", "assistant": "assistant", "system": "system",
    "ctx": "user", "msg": "user",  # of Claude Code
}  # fmt: skip
# Claude Code begins its system prompt with a line that differs in each request: nothing after it would be found in the
# prefix cache.
_BILLING = "x-anthropic-billing-header"
# Blocks that only Anthropic can read or continue: encrypted thoughts, and calls of the tools that it runs.
_UNREADABLE = ("redacted_thinking", "server_tool_use")
_RESULT_OF_SERVER_TOOL = "_tool_result"  # such as web_search_tool_result


def conversation(body: CountTokensRequest) -> list[dict[str, Any]]:
    """Returns the system prompt and the messages.

    Raises:
        InvalidRequest: something in them is malformed, or not supported.
    """
    found: list[dict[str, Any]] = []
    if body.system:
        found.append({"role": "system", "content": _system(body.system)})
    called: dict[str, str] = {}  # call id → tool name
    for index, message in enumerate(body.messages):
        place, role = f"messages[{index}]", _ROLES.get(str(message.get("role")))
        if role is None:
            raise InvalidRequest(
                f"{place}.role is {str(message.get('role'))[:50]!r}; it must be user or assistant.",
                parameter="messages",
            )
        found += _messages(role, _blocks(message.get("content"), f"{place}.content"), called)
    return found


def _system(content: str | list[Part]) -> str | list[Part]:
    if isinstance(content, str):
        return content
    found = []
    for place, block in _blocks(content, "system"):
        if block.get("type") != "text":
            raise InvalidRequest(f"{place} must be a text block.", parameter="system")
        if not (text := _text(block, "text", place)).startswith(_BILLING):
            found.append({"type": "text", "text": text})
    return found


def _blocks(content: Any, place: str) -> list[tuple[str, Block]]:
    """Returns the blocks of a content, with their places for error messages."""
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequest(f"{place} must be a string or a list of blocks.", parameter="messages")
    return [(f"{place}[{index}]", block) for index, block in enumerate(content)]


def _messages(role: str, blocks: Iterable[tuple[str, Block]], called: dict[str, str]) -> list[dict[str, Any]]:
    """Converts one message. Tool results become messages of their own, before the user's text that came with them."""
    results, parts, calls, thoughts = [], [], [], []
    for place, block in blocks:
        match block.get("type"):
            case "tool_result" if role == "user":
                results.append(_result(block, place, called))
            case "tool_use" if role == "assistant":
                calls.append(_call(block, place, called))
            case "thinking" if role == "assistant":
                thoughts.append(_text(block, "thinking", place))
            case str(kind) if kind in _UNREADABLE or kind.endswith(_RESULT_OF_SERVER_TOOL):
                pass
            case kind if kind == "text" or role != "assistant":
                parts += _parts(block, place)
            case kind:
                raise _unsupported(kind, place)
    is_text = len(parts) == 1 and "text" in parts[0]
    said: dict[str, Any] = {"role": role, "content": parts[0]["text"] if is_text else parts}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said |= {"tool_calls": calls, "content": said["content"] or None}
    return [*results, *([said] if parts or calls or thoughts or not results else [])]


def _parts(block: Block, place: str) -> list[Part]:
    """Converts a block of a user's message or of a tool's result."""
    match block.get("type"):
        case "text":
            return [_text_part(_text(block, "text", place))]
        case "image":
            return [_image(block, place)]
        case "document":
            return _document(block, place)
        case "search_result":
            text = "\n".join(_text(each, "text", where) for where, each in _blocks(block.get("content"), place))
            title = f"{block.get('title') or ''} {block.get('source') or ''}".strip()
            return [_text_part(document_text(text, title))]
        case "tool_reference":
            return [_text_part(_text(block, "tool_name", place))]
        case kind:
            raise _unsupported(kind, place)


def _unsupported(kind: Any, place: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place} is a block of type {str(kind)[:50]!r}, which is not supported here. Supported are text, image, "
        "document, search_result and tool_result (user), and text, tool_use and thinking (assistant).",
        parameter="messages",
    )


def _document(block: Block, place: str) -> list[Part]:
    """Converts a document to a text, followed by the images in it."""
    source, images = block.get("source"), []
    match source if isinstance(source, dict) else {}:
        case {"type": "text", "data": str(text)}:
            pass
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            text = file_text(f"data:{kind};base64,{data}", f"{place}.source", "messages")
        case {"type": "content", "content": content}:
            inner = _blocks(content, f"{place}.source.content")
            images = [_image(each, where) for where, each in inner if each.get("type") == "image"]
            text = "\n".join(_text(each, "text", where) for where, each in inner if each.get("type") != "image")
        case _:
            raise InvalidRequest(
                f'{place}.source must be {{"type": "text", "media_type": "text/plain", "data": "…"}} or {{"type": '
                '"content", "content": […]}: Quire neither stores nor fetches documents.', parameter="messages",
            )  # fmt: skip
    return [_text_part(document_text(text, block.get("title") or "", block.get("context") or "")), *images]


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _text(block: Block, name: str, place: str) -> str:
    if not isinstance(text := block.get(name), str):
        raise InvalidRequest(f"{place}.{name} must be a string.", parameter="messages")
    return text


def _image(block: Block, place: str) -> Part:
    source = block.get("source")
    match source if isinstance(source, dict) else {}:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            pass
        case _:
            raise InvalidRequest(
                f'{place}.source must be {{"type": "base64", "media_type": "image/png", "data": "…"}} or '
                '{"type": "url", "url": "…"}.',
                parameter="messages",
            )
    return PlacedPart(place, type="image_url", image_url={"url": url})


def _call(block: Block, place: str, called: dict[str, str]) -> dict[str, Any]:
    name, given = _text(block, "name", place), block.get("input")
    if not isinstance(given, dict):
        raise InvalidRequest(f"{place}.input must be an object.", parameter="messages")
    called[_text(block, "id", place)] = name
    return {"id": block["id"], "type": "function", "function": {"name": name, "arguments": given}}


def _result(block: Block, place: str, called: Mapping[str, str]) -> dict[str, Any]:
    call = _text(block, "tool_use_id", place)
    if call not in called:
        raise InvalidRequest(
            f"{place}.tool_use_id is {call[:64]!r}, which no earlier tool_use has.", parameter="messages"
        )
    content = block.get("content") or ""
    if not isinstance(content, str):
        content = [part for where, each in _blocks(content, f"{place}.content") for part in _parts(each, where)]
    return {"role": "tool", "tool_call_id": call, "name": called[call], "content": content}
