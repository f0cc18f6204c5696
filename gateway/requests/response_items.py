"""Converts items of OpenAI's Responses API to chat messages, which the rest of the gateway works on."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.requests.documents import file_document
from gateway.requests.messages import TEXTS, PlacedPart
from gateway.requests.response_tools import flat_name
from gateway.requests.summaries import opened
from gateway.tool_parsers.custom_input import PARAMETER
from quire.errors import InvalidRequest

Item = Mapping[str, Any]
Message = dict[str, Any]
Content = str | list[Message]
# Templates do not know the developer role.
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_IMAGE = "input_image"
_FILE = "input_file"


def items_of(given: str | Sequence[Item]) -> list[Item]:
    """Returns a request's input as items.

    Raises:
        InvalidRequest: the input is empty.
    """
    if not given:
        raise InvalidRequest("input is empty: send a text, or items such as messages.", parameter="input")
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else list(given)


def items_json(items: Sequence[Item]) -> bytes:
    """Encodes items for storage.

    Raises:
        InvalidRequest: they are nested too deeply.
    """
    try:
        return msgspec.json.encode(items)
    except RecursionError:
        raise InvalidRequest("input is nested too deeply.", parameter="input") from None


def messages_of(instructions: str | None, items: Sequence[Item], num_earlier: int) -> list[Message]:
    """Converts items to a conversation.

    Args:
        num_earlier: how many of the items belong to previous responses; the rest are the request's input.

    Raises:
        InvalidRequest: an item is malformed, or of an unsupported type.
    """
    conversation = _Conversation(instructions)
    for index, item in enumerate(items, -num_earlier):
        conversation.add(item, f"input[{index}]" if index >= 0 else "an item of previous_response_id's response")
    return conversation.messages


class _Conversation:
    """Collects messages from items. Consecutive reasoning, text and calls of the assistant become one message."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        self._called: dict[str, str] = {}  # call id → tool name
        self._recalled: Message | None = None  # with the last summary

    def add(self, item: Item, place: str) -> None:
        """Adds the next item."""
        match item.get("type", "message"):
            case "message":
                self._say(item, place)
            case "reasoning":
                if text := _reasoning(item, place):
                    turn = self._turn("content", "tool_calls")
                    turn["reasoning"] = turn.get("reasoning", "") + text
            case "function_call":
                self._call(item, place, _string(item, "arguments", place))
            case "compaction":
                self._recall(item, place)
            case "custom_tool_call":
                self._call(item, place, {PARAMETER: _string(item, "input", place)})
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, place)
            case kind:
                raise InvalidRequest(
                    f"{place} is of type {str(kind)[:50]!r}; Quire supports items of type message, reasoning, "
                    "function_call, function_call_output, custom_tool_call, custom_tool_call_output and compaction.",
                    parameter="input",
                )  # fmt: skip

    def _say(self, item: Item, place: str) -> None:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise InvalidRequest(
                f"{place}.role is {str(item.get('role'))[:50]!r}; it must be one of {', '.join(_ROLES)}.",
                parameter="input",
            )
        if role == "user":
            self._ask(_content(item.get("content"), f"{place}.content"))
            return
        text = _text(item.get("content"), f"{place}.content")
        if role == "assistant":
            self._turn("content", "tool_calls")["content"] = text
        elif len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += "\n\n" + text  # most templates accept only one, at the beginning
        else:
            self.messages.append({"role": role, "content": text})

    def _ask(self, content: Content) -> None:
        """Adds the user's content: to that of a summary before it, as most templates want the turns to alternate."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last is self._recalled:
            last["content"] = joined(last["content"], content)
        else:
            self.messages.append({"role": "user", "content": content})

    def _recall(self, item: Item, place: str) -> None:
        """Adds a summary of the conversation before, which becomes one turn with the user's messages around it."""
        asked: list[Content] = []
        while self.messages and self.messages[-1]["role"] == "user":
            asked.insert(0, self.messages.pop()["content"])
        summary = opened(_string(item, "encrypted_content", place), f"{place}.encrypted_content")
        content = functools.reduce(joined, [*asked, f"Summary of our conversation up to here:\n\n{summary}"])
        self._recalled = {"role": "user", "content": content}
        self.messages.append(self._recalled)

    def _turn(self, *taken: str) -> Message:
        """Returns the assistant message to continue; a new one if the last message already has any of `taken`."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(last.get(name) for name in taken):
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]

    def _call(self, item: Item, place: str, arguments: str | dict[str, str]) -> None:
        name = flat_name(item.get("namespace"), _string(item, "name", place))
        identity = _string(item, "call_id", place)
        function = {"name": name, "arguments": arguments}
        self._called[identity] = name
        call = {"id": identity, "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _result(self, item: Item, place: str) -> None:
        identity = _string(item, "call_id", place)
        if identity not in self._called:
            raise InvalidRequest(
                f"{place}.call_id is {identity[:64]!r}, which no earlier call has: send that call too, or the "
                " previous_response_id of the response that has it.", parameter="input",
            )  # fmt: skip
        content = _content(item.get("output"), f"{place}.output")
        self.messages.append(
            {"role": "tool", "tool_call_id": identity, "name": self._called[identity], "content": content}
        )


def _string(item: Item, name: str, place: str) -> str:
    if not isinstance(text := item.get(name), str):
        raise InvalidRequest(f"{place}.{name} must be a string.", parameter="input")
    return text


def joined(first: Content, second: Content) -> Content:
    """The contents of two messages as that of one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    return [part for some in parts for part in some]


def _content(content: Any, place: str) -> Content:
    """Converts a content that may have images: to its text if it has none."""
    if isinstance(content, str) or not any(part.get("type") == _IMAGE for part in _parts(content, place)):
        return _text(content, place)
    return [
        PlacedPart(f"{place}[{index}]", type="image_url", image_url={"url": _url(part, f"{place}[{index}]")})
        if part.get("type") == _IMAGE
        else {"type": "text", "text": _part(part, f"{place}[{index}]")}
        for index, part in enumerate(content)
    ]


def _url(part: Item, place: str) -> str:
    if part.get("file_id") is not None:
        raise InvalidRequest(
            f"{place} names a file, but Quire stores none: send the image as a data: URL in image_url.",
            parameter="input",
        )
    return _string(part, "image_url", place)


def _text(content: Any, place: str) -> str:
    """Returns the text of a content."""
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(_parts(content, place)))


def _parts(content: Any, place: str) -> list[Item]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequest(f"{place} must be a string or a list of parts.", parameter="input")
    return content


def _part(part: Item, place: str) -> str:
    kind = part.get("type")
    if kind == _FILE:
        return file_document(part, place, "input")
    if not isinstance(kind, str) or kind not in TEXTS:
        raise InvalidRequest(
            f"{place} is of type {str(kind)[:50]!r}, which is not supported here. Supported are input_text, "
            "output_text, input_file and, from the user and from tools, input_image.",
            parameter="input",
        )
    return _string(part, TEXTS[kind], place)


def _reasoning(item: Item, place: str) -> str:
    """Returns the reasoning text, or its summary if there is nothing else."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise InvalidRequest(f"{place}.{name} must be a list of parts.", parameter="input")
        if parts:
            return "".join(_strings(parts, f"{place}.{name}"))
    return ""


def _strings(parts: Iterable[Item], place: str) -> Iterable[str]:
    return (_string(part, "text", f"{place}[{index}]") for index, part in enumerate(parts))
