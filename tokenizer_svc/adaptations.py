"""Adapts conversations to chat templates that cannot render them as they are.

Many models' templates were written for messages in which every field has a value of one certain type, which OpenAI's
API does not promise: `content` may be null beside tool calls, and tools may lack descriptions and parameters.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class JsonArguments(dict[str, Any]):
    """A tool call's arguments: an object, for templates that loop over it, which is JSON where a template writes it as
    text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


@dataclass(frozen=True)
class Conversation:
    """What a template renders.

    Attributes:
        effort: how much to think if the request does not say; empty leaves it to the template.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    effort: str


def attempts(given: Conversation, *, null_first: bool) -> Iterator[Conversation]:
    """The forms of a conversation to try one after another, until the template renders one.

    Args:
        null_first: whether missing content beside tool calls is null at first, and not an empty string.
    """
    content = None if null_first else ""
    form = dataclasses.replace(given, messages=_with_arguments(_with_missing_content(given.messages, content)))
    yield form
    steps: tuple[Callable[[Conversation], Conversation], ...] = (
        lambda each: dataclasses.replace(each, messages=_with_missing_content(each.messages, "")),
        lambda each: dataclasses.replace(each, tools=_complete(each.tools)),
        lambda each: dataclasses.replace(each, messages=_without_thinking(each.messages)),
        lambda each: dataclasses.replace(each, effort=""),
    )
    for step in steps:
        if (changed := step(form)) != form:
            form = changed
            yield form


def _with_missing_content(messages: list[dict[str, Any]], content: str | None) -> list[dict[str, Any]]:
    return [
        {**message, "content": content} if message.get("tool_calls") and not message.get("content") else message
        for message in messages
    ]


def _with_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**message, "tool_calls": [_with_json_arguments(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _with_json_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": JsonArguments(function["arguments"])}}


def _complete(tools: list[Any] | None) -> list[Any]:
    """The tools with what OpenAI's API lets them leave out; some templates loop over them even if there are none."""
    missing = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return [
        {
            **tool,
            "function": {**missing, **{key: value for key, value in tool["function"].items() if value is not None}},
        }
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
        else tool
        for tool in tools or ()
    ]


def _without_thinking(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without gpt-oss's field for reasoning, which its template refuses beside text and tool calls."""
    return [
        {key: value for key, value in message.items() if key != "thinking"}
        if message.get("tool_calls") and message.get("content")
        else message
        for message in messages
    ]
