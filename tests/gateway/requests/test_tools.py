"""Tools in requests: what may be called, what the template receives, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.answers.context import Tool, ToolChoice
from gateway.endpoints.body import decode_json
from gateway.protocol.chat import ChatCompletionRequest
from gateway.requests.tools import NO_TOOLS, ToolUse, template_tools, tool_use
from gateway.tool_parsers.first_call import FirstCallOnly
from gateway.tool_parsers.tagged_json import Hermes
from quire.bounds import MAX_TOOLS
from quire.errors import InvalidRequest, StartupError
from quire.options.tools import ToolOptions

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
AUTO = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def use_of(options: ToolOptions = AUTO, **fields: Any) -> ToolUse:
    body = {"messages": [{"role": "user", "content": "A"}], **fields}
    return tool_use(decode_json(msgspec.json.encode(body), ChatCompletionRequest), Hermes, options)


TOOLS = [function("f", description="d", parameters=SCHEMA), function("g")]


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}, {"parallel_tool_calls": False}, {"tools": None}])
def test_without_tools_nothing_is_called(fields: dict[str, Any]) -> None:
    assert use_of(ToolOptions(), **fields) is NO_TOOLS
    assert NO_TOOLS.parsers == ()


@pytest.mark.parametrize("choice", [{}, {"tool_choice": None}, {"tool_choice": "auto"}])
def test_tools_without_a_choice_leave_it_to_the_model(choice: dict[str, Any]) -> None:
    use = use_of(tools=TOOLS, **choice)
    assert use.choice is ToolChoice.AUTO
    assert use.tools == (Tool("f", SCHEMA), Tool("g"))
    assert use.parsers == (Hermes,)


@pytest.mark.parametrize("choice", ["required", "any"])
def test_a_call_may_be_required(choice: str) -> None:
    assert use_of(tools=TOOLS, tool_choice=choice).choice is ToolChoice.REQUIRED


def test_templates_get_tools_as_they_come() -> None:
    extra = [TOOLS[0] | {"x": {"b": 1, "a": 2}}]
    assert msgspec.json.decode(use_of(tools=extra).offered) == extra
    assert b'{"b":1,"a":2}' in template_tools(extra)
    assert template_tools(None) == b""
    with pytest.raises(InvalidRequest, match="empty"):
        template_tools([])


def test_with_none_the_model_is_told_of_tools_and_calls_none() -> None:
    use = use_of(ToolOptions(), tools=TOOLS, tool_choice="none")
    assert (use.choice, use.tools) == (ToolChoice.NONE, ())
    assert msgspec.json.decode(use.offered) == TOOLS
    assert use.parsers == ()
    excluding = ToolOptions(exclude_tools_when_tool_choice_none=True)
    assert use_of(excluding, tools=TOOLS, tool_choice="none").offered == b""


def test_one_call_at_a_time() -> None:
    use = use_of(tools=TOOLS, parallel_tool_calls=False)
    assert use.parsers == (Hermes, FirstCallOnly)
    assert use_of(tools=TOOLS, tool_choice="none", parallel_tool_calls=False).parsers == ()


def test_what_finds_the_thinking_may_find_the_calls_too() -> None:
    body = {"messages": [{"role": "user", "content": "A"}], "tools": TOOLS, "parallel_tool_calls": False}
    use = tool_use(decode_json(msgspec.json.encode(body), ChatCompletionRequest), None, AUTO)
    assert (use.choice, use.parsers) == (ToolChoice.AUTO, (FirstCallOnly,))


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": []}, "tools", "empty"),
    ({"tools": [function("f")] * 2}, "tools", "two functions named 'f'"),
    ({"tools": [function(f"f{number}") for number in range(MAX_TOOLS + 1)]}, "tools", "1025"),
    ({"tools": [{"type": "function"}]}, "tools", r"tools\[0\].function is missing"),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools", r"tools\[0\].function is missing"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools", r"tools\[0\].type is 'custom'"),
    ({"tools": [function("f"), function("")]}, "tools", r"tools\[1\].function.name is ''"),
    ({"tools": [function("get weather")]}, "tools", "'get weather'.*A-Z"),
    ({"tools": [function("f" * 129)]}, "tools", "1 to 128"),
    ({"tools": [function("f\n")]}, "tools", "A-Z"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "name is missing"),
    ({"tools": [function("f", parameters=[])]}, "tools", "parameters is list"),
    ({"tools": [function("f", parameters={"type": "string"})]}, "tools", "parameters.type is 'string'"),
    ({"tools": [function("f", strict="yes")]}, "tools", "strict is 'yes'"),
    ({"tool_choice": "auto"}, "tool_choice", "needs tools"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tool_choice": named("f")}, "tool_choice", "not among the tools"),
    ({"tools": TOOLS, "tool_choice": named("h")}, "tool_choice", r"'h'.*\(f, g\)"),
    ({"tools": TOOLS, "tool_choice": named(7)}, "tool_choice", "must be none, auto"),
    ({"tools": TOOLS, "tool_choice": "f"}, "tool_choice", "'f'; it must be none, auto"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "must be none, auto"),
    ({"tools": TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice", "must be none, auto"),
    ({"tools": TOOLS, "tool_choice": allowed("none", "f")}, "tool_choice", "needs mode"),
    ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice", "needs mode"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "needs mode"),
    ({"tools": TOOLS, "tool_choice": allowed("auto", "f", "x")}, "tool_choice", "'x'"),
]


@pytest.mark.parametrize(("fields", "parameter", "part"), MALFORMED)
def test_what_is_wrong_is_named(fields: dict[str, Any], parameter: str, part: str) -> None:
    with pytest.raises(InvalidRequest, match=part) as raised:
        use_of(**fields)
    assert raised.value.parameter == parameter
    assert len(raised.value.message) < 600


def test_a_choice_that_is_the_models_needs_a_server_that_leaves_it() -> None:
    for fields in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}):
        with pytest.raises(InvalidRequest, match="--enable-auto-tool-choice") as raised:
            use_of(ToolOptions(tool_call_parser="hermes"), **fields)
        assert raised.value.parameter == "tool_choice"
    with pytest.raises(StartupError, match="--tool-call-parser"):
        ToolOptions(enable_auto_tool_choice=True).check("qwen3")
    ToolOptions(enable_auto_tool_choice=True).check("openai_gptoss")
