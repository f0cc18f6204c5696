"""Converts the tools of OpenAI's Responses API to tools of chats.

A custom tool takes a text; models call it as a function with that text as its only parameter. The tools of a namespace
become functions whose names begin with the namespace's. All other types are tools that OpenAI's servers run, or that
only OpenAI's models know: they are not offered to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from gateway.protocol.responses import ResponsesTool
from gateway.tool_parsers.custom_input import PARAMETER
from quire.errors import InvalidRequest

_MODES = ("none", "auto", "required")
_NAMED = ("function", "custom")
_RUN_BY_CLIENTS = (*_NAMED, "namespace")
_NAMED_FORM = '{"type": "function", "name": "…"}'
_ALLOWED_FORM = f'{{"type": "allowed_tools", "mode": "auto", "tools": [{_NAMED_FORM}]}}'


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs, as an answer's items name it."""

    name: str
    namespace: str | UnsetType = UNSET
    is_custom: bool = False


def flat_name(namespace: Any, name: str) -> str:
    """Returns the name of a tool for the model."""
    return f"{namespace}__{name}" if namespace else name


def offered(tools: Sequence[ResponsesTool]) -> list[ResponsesTool]:
    """Returns the tools that are offered to the model."""
    return [tool for tool in tools if tool.type in _RUN_BY_CLIENTS]


def left_out(tools: Sequence[ResponsesTool]) -> list[str]:
    """Returns the types of the tools that are not offered to the model."""
    return [tool.type for tool in tools if tool.type not in _RUN_BY_CLIENTS]


def client_tools(tools: Sequence[ResponsesTool]) -> dict[str, ClientTool]:
    """Returns the tools by their names for the model."""
    return {
        flat_name(namespace, tool.name or ""): ClientTool(tool.name or "", namespace or UNSET, tool.type == "custom")
        for _, namespace, tool in _each(tools)
    }


def chat_tools(tools: Sequence[ResponsesTool]) -> list[dict[str, Any]] | None:
    """Converts the tools; returns None if none is offered.

    Raises:
        InvalidRequest: a tool has no name.
    """
    found = []
    for place, namespace, tool in _each(tools):
        if not tool.name:
            raise InvalidRequest(f"{place}.name is missing.", parameter="tools")
        told = _input_of(tool) if tool.type == "custom" else {
            "description": tool.description, "parameters": tool.parameters, "strict": tool.strict,
        }  # fmt: skip
        function = {name: value for name, value in told.items() if value is not None}
        found.append({"type": "function", "function": {"name": flat_name(namespace, tool.name), **function}})
    return found or None


def _each(tools: Sequence[ResponsesTool]) -> Iterator[tuple[str, str | None, ResponsesTool]]:
    """Yields the tools with their places in the request, and the namespaces that they are in."""
    for index, tool in enumerate(tools):
        if tool.type in _NAMED:
            yield f"tools[{index}]", None, tool
        elif tool.type == "namespace":
            for number, inner in enumerate(tool.tools or ()):
                if inner.type in _NAMED:
                    yield f"tools[{index}].tools[{number}]", tool.name, inner


def _input_of(tool: ResponsesTool) -> dict[str, Any]:
    """Description and parameters of a custom tool. Its grammar is told to the model, which may not keep to it."""
    said = [tool.description or ""]
    if tool.format and tool.format.type == "grammar":
        said.append(f"The {PARAMETER} follows this {tool.format.syntax} grammar:\n{tool.format.definition}")
    schema = {
        "type": "object", "properties": {PARAMETER: {"type": "string"}}, "required": [PARAMETER],
        "additionalProperties": False,
    }  # fmt: skip
    return {"description": "\n\n".join(filter(None, said)), "parameters": schema}


def chat_tool_choice(asked: str | Mapping[str, Any] | None, has_tools: bool) -> str | dict[str, Any] | None:
    """Converts the tool choice.

    Raises:
        InvalidRequest: it is malformed, or demands a tool that is not offered.
    """
    if isinstance(asked, str):
        if asked not in _MODES:
            raise InvalidRequest(
                f"tool_choice is {asked[:50]!r}; it must be {', '.join(_MODES)}, {_NAMED_FORM} or {_ALLOWED_FORM}.",
                parameter="tool_choice",
            )
        return None if asked == "auto" and not has_tools else asked
    if asked is None:
        return None
    if asked.get("type") in _NAMED:
        return _named(asked)
    if asked.get("type") == "allowed_tools":
        return _allowed(asked.get("mode"), asked.get("tools"))
    raise InvalidRequest(
        f"tool_choice is of type {str(asked.get('type'))[:50]!r}, which Quire does not run; it must be none, auto, "
        "required, or of type function, custom or allowed_tools.", parameter="tool_choice",
    )  # fmt: skip


def _allowed(mode: Any, tools: Any) -> dict[str, Any]:
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise InvalidRequest(
            f"tool_choice of type allowed_tools needs mode (auto or required) and tools, as in {_ALLOWED_FORM}.",
            parameter="tool_choice",
        )
    named = [_named(tool) for tool in tools if not isinstance(tool, Mapping) or tool.get("type") in _NAMED]
    if not named:
        raise InvalidRequest(
            "tool_choice allows only tools that Quire does not run: also allow a function or custom tool.",
            parameter="tool_choice",
        )
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def _named(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, Mapping) or not isinstance(name := choice.get("name"), str):
        raise InvalidRequest(f"tool_choice needs a tool's name, as in {_NAMED_FORM}.", parameter="tool_choice")
    return {"type": "function", "function": {"name": flat_name(choice.get("namespace"), name)}}
