"""The tools that a request offers: which may be called, and whether one must be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.answers.context import Tool, ToolChoice
from gateway.answers.parser import AnswerParser
from gateway.protocol.chat import ChatFields
from gateway.tool_parsers.base import ToolParser
from gateway.tool_parsers.first_call import FirstCallOnly
from gateway.tool_parsers.unmarked import NamedArguments, PlainCalls
from quire.bounds import MAX_TOOLS, TOOL_NAME_PATTERN, check_count
from quire.errors import InvalidRequest
from quire.options.tools import ToolOptions

_NAME = re.compile(TOOL_NAME_PATTERN)
_SHOWN = 64  # maximum characters of a name, and number of tools, in messages
_MODES = {choice.value: choice for choice in (ToolChoice.NONE, ToolChoice.AUTO, ToolChoice.REQUIRED)}
_MODES["any"] = ToolChoice.REQUIRED  # in Mistral's clients
_NAMED_FORM = '{"type": "function", "function": {"name": "…"}}'
_ALLOWED_FORM = f'{{"type": "allowed_tools", "allowed_tools": {{"mode": "auto", "tools": [{_NAMED_FORM}]}}}}'


@dataclass(frozen=True)
class ToolUse:
    """How a request uses tools. Everything is validated already.

    Attributes:
        tools: the tools that may be called; only the named one if the choice names one.
        choice: whether they are called; NONE if there are none.
        reader: parser of the calls; None if there are no calls, or if the reasoning parser finds them.
        is_parallel: whether several calls are allowed.
        is_bound: whether calls that the model makes on its own are restricted in tool or arguments.
        offered: all tools as passed to the template, in JSON; empty for none.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice.NONE
    reader: type[ToolParser] | None = None
    is_parallel: bool = True
    is_bound: bool = False
    offered: bytes = b""

    @property
    def parsers(self) -> tuple[type[AnswerParser], ...]:
        """The parsers that find the calls in an answer."""
        reader = (self.reader,) if self.reader else ()
        return reader if self.is_parallel or self.choice is ToolChoice.NONE else (*reader, FirstCallOnly)


NO_TOOLS = ToolUse()


def tool_use(body: ChatFields, parser: type[ToolParser] | None, options: ToolOptions) -> ToolUse:
    """Returns how a request uses tools.

    Args:
        parser: of the model's native tool calls; None if unknown.

    Raises:
        InvalidRequest: a tool is malformed, or the choice is unknown, names no offered tool, or is not enabled.
    """
    if body.tools is None and body.tool_choice in (None, ToolChoice.NONE.value):
        return NO_TOOLS
    tools = _tools(body.tools, options.strict_tool_calls)
    choice, chosen = _choice(body.tool_choice, tools)
    if choice is ToolChoice.AUTO and not options.enable_auto_tool_choice:
        raise InvalidRequest(
            'tool_choice "auto", the default with tools, needs a server started with --enable-auto-tool-choice and '
            "--tool-call-parser: restart it with these options, or set tool_choice to none, required or a function.",
            parameter="tool_choice",
        )
    is_hidden = choice is ToolChoice.NONE and options.exclude_tools_when_tool_choice_none
    return ToolUse(
        chosen,
        choice,
        _reader(choice, parser),
        is_parallel=body.parallel_tool_calls is not False,
        is_bound=choice is ToolChoice.AUTO and (chosen != tools or any(tool.is_strict for tool in chosen)),
        offered=b"" if is_hidden else tools_json(body.tools),
    )


def _reader(choice: ToolChoice, parser: type[ToolParser] | None) -> type[ToolParser] | None:
    """Returns the parser: of the model's native format, or of plain JSON for forced calls if that is not available."""
    if choice is ToolChoice.NONE:
        return None
    if choice is ToolChoice.AUTO or (parser is not None and parser.syntax("f") is not None):
        return parser
    return NamedArguments if choice is ToolChoice.NAMED else PlainCalls


def template_tools(tools: Sequence[Mapping[str, Any]] | None) -> bytes:
    """Returns the tools as passed to templates, in JSON; empty for none.

    Raises:
        InvalidRequest: a tool is malformed.
    """
    _tools(tools, all_strict=False)
    return tools_json(tools) if tools else b""


def tools_json(value: Any) -> bytes:
    """Encodes tools, or something derived from them, as JSON.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        raise InvalidRequest("tools are nested too deeply.", parameter="tools") from None


def _tools(asked: Sequence[Mapping[str, Any]] | None, all_strict: bool) -> tuple[Tool, ...]:
    if asked is None:
        return ()
    if not asked:
        raise InvalidRequest("tools is an empty list: offer at least one function, or leave it out.", parameter="tools")
    check_count("tools", len(asked), MAX_TOOLS, "entries")
    tools: dict[str, Tool] = {}
    for index, each in enumerate(asked):
        tool = _tool(each, f"tools[{index}]", all_strict)
        if tool.name in tools:
            raise InvalidRequest(f"tools has two functions named {tool.name!r}: names must differ.", parameter="tools")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(asked: Mapping[str, Any], place: str, is_strict: bool) -> Tool:
    if (kind := asked.get("type", "function")) != "function":
        raise _malformed(f"{place}.type", kind, "function, the only supported type")
    if not isinstance(function := asked.get("function"), dict):
        raise _malformed(f"{place}.function", function, "an object with name, description and parameters")
    name, place = function.get("name"), f"{place}.function"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _malformed(f"{place}.name", name, "1 to 128 of the characters A-Z a-z 0-9 _ -")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _malformed(f"{place}.strict", strict, "true or false")
    return Tool(name, _parameters(function.get("parameters"), f"{place}.parameters"), is_strict or bool(strict))


def _parameters(schema: Any, place: str) -> Mapping[str, Any]:
    if schema is None:
        return {}
    if not isinstance(schema, dict):
        raise _malformed(place, schema, "a JSON schema of an object")
    if (kind := schema.get("type", "object")) != "object":
        raise _malformed(f"{place}.type", kind, "object, because arguments have names")
    return schema


def _malformed(place: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{place} is {_shown(value)}; it must be {wanted}.", parameter="tools")


def _choice(asked: str | Mapping[str, Any] | None, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """Returns the tool choice, and the tools that may be called."""
    if asked is None:
        return ToolChoice.AUTO, tools
    if isinstance(asked, str) and asked in _MODES:
        choice, chosen = _MODES[asked], tools
    elif isinstance(asked, dict) and asked.get("type") == "function":
        choice, chosen = ToolChoice.NAMED, (_named(asked, tools),)
    elif isinstance(asked, dict) and asked.get("type") == "allowed_tools":
        choice, chosen = _allowed(asked.get("allowed_tools"), tools)
    else:
        raise _no_choice(asked)
    if not tools and choice is not ToolChoice.NONE:
        raise InvalidRequest("tool_choice needs tools: send those that may be called.", parameter="tool_choice")
    return choice, () if choice is ToolChoice.NONE else chosen


def _allowed(asked: Any, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    mode, named = (asked.get("mode"), asked.get("tools")) if isinstance(asked, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(named, list) or not named:
        raise InvalidRequest(
            f"tool_choice.allowed_tools needs mode (auto or required) and tools, as in {_ALLOWED_FORM}.",
            parameter="tool_choice",
        )
    allowed = {_named(each, tools).name for each in named}
    return _MODES[mode], tuple(tool for tool in tools if tool.name in allowed)


def _named(asked: Any, tools: tuple[Tool, ...]) -> Tool:
    function = asked.get("function") if isinstance(asked, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _no_choice(asked)
    for tool in tools:
        if tool.name == name:
            return tool
    offered = ", ".join(tool.name for tool in tools[:_SHOWN]) or "none"
    raise InvalidRequest(
        f"tool_choice names {_shown(name)}, which is not among the tools ({offered}).", parameter="tool_choice"
    )


def _no_choice(asked: Any) -> InvalidRequest:
    return InvalidRequest(
        f"tool_choice is {_shown(asked)}; it must be none, auto, required, {_NAMED_FORM} or {_ALLOWED_FORM}.",
        parameter="tool_choice",
    )


def _shown(value: Any) -> str:
    """Formats a value of the request for an error message, shortened if necessary."""
    text = "missing" if value is None else repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
