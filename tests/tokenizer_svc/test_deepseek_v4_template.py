"""DeepSeek V4, which comes without a chat template, renders conversations as its published code does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection
from tokenizer_svc.deepseek_template import deepseek_templates

SYSTEM, USER = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}
DEVELOPER = {"role": "developer", "content": "Rome?"}
REMINDER = {"role": "latest_reminder", "content": "Sunday"}
ANSWER = {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}
AGAIN = {"role": "user", "content": "And in Rome?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = {
    "role": "assistant", "content": None, "reasoning_content": "Look.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}},
        {"id": "b", "type": "function", "function": {"name": "weather", "arguments": {}}},
    ],
}  # fmt: skip
RESULTS = [{"role": "tool", "tool_call_id": place, "content": text} for place, text in (("b", "sun"), ("a", "rain"))]
END = "<｜end▁of▁sentence｜>"
CALLED = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">[1, 2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    f'<｜DSML｜invoke name="weather">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>{END}'
)
HI, ROME = "<｜User｜>Hi<｜Assistant｜>", "<｜User｜>And in Rome?<｜Assistant｜>"
FOUND = "<｜User｜><tool_result>rain</tool_result>\n\n<tool_result>sun</tool_result>"
GREETED = f"A greeting.</think>Hello{END}"
ADHERE = '\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{"type": "object"}'
CHAT, THINK = {"thinking": False}, {"reasoning_effort": "low"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v4"}))
    return tmp_path


def rendered(
    folder: Path,
    *messages: dict[str, Any],
    tools: list[Any] | None = None,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    templates = ChatTemplates(deepseek_templates(folder), {}, 10**6, "auto")
    text = templates.render(
        list(messages), tools, add_generation_prompt=add_generation_prompt, continue_final_message=False,
        variables=variables, template=None, default_effort="",
    ).text  # fmt: skip
    assert text.startswith("<｜begin▁of▁sentence｜>")
    return text.removeprefix("<｜begin▁of▁sentence｜>")


@pytest.mark.parametrize(
    ("messages", "variables", "expected"),
    [
        ([SYSTEM, USER], CHAT, f"Be short.{HI}</think>"),
        ([SYSTEM, USER], THINK, f"Be short.{HI}<think>"),
        ([USER], THINK | {"add_generation_prompt": False}, "<｜User｜>Hi"),
        ([SYSTEM], CHAT, "Be short.<｜Assistant｜></think>"),
        # Neighbouring messages and parts are one turn.
        ([USER, AGAIN], CHAT, f"<｜User｜>Hi\n\n{ROME[8:]}</think>"),
        ([{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}], CHAT,
         "<｜User｜>a\n\nb<｜Assistant｜></think>"),
        # Reasoning is kept after the last question, or everywhere.
        ([USER, ANSWER], THINK, f"{HI}<think>{GREETED}"),
        ([USER, ANSWER, AGAIN], THINK, f"{HI}</think>Hello{END}{ROME}<think>"),
        ([USER, ANSWER, AGAIN], THINK | {"drop_thinking": False}, f"{HI}<think>{GREETED}{ROME}<think>"),
        ([USER, ANSWER, AGAIN], CHAT, f"{HI}</think>Hello{END}{ROME}</think>"),
        # A result is a user's, in the order of the calls.
        ([USER, CALLS, *RESULTS], THINK, f"{HI}</think>{CALLED}{FOUND}<｜Assistant｜><think>"),
        ([USER, CALLS, *RESULTS, AGAIN], CHAT, f"{HI}</think>{CALLED}{FOUND}\n\n{ROME[8:]}</think>"),
        # A developer is the system, or a user if none comes later; then only the last one's question is kept.
        ([DEVELOPER, USER], THINK, f"Rome?{HI}<think>"),
        ([SYSTEM, DEVELOPER], THINK, "Be short.<｜User｜>Rome?<｜Assistant｜><think>"),
        ([DEVELOPER, ANSWER, DEVELOPER], THINK, f"Hello{END}<｜User｜>Rome?<｜Assistant｜><think>"),
        ([DEVELOPER, ANSWER, DEVELOPER], CHAT,
         f"<｜User｜>Rome?<｜Assistant｜></think>Hello{END}<｜User｜>Rome?<｜Assistant｜></think>"),
        ([SYSTEM, REMINDER, USER], CHAT, f"Be short.<｜latest_reminder｜>Sunday{HI}</think>"),
        # Tasks, and a text to be continued.
        ([USER | {"task": "action"}, {"role": "assistant", "content": "Search"}], THINK,
         f"{HI}<think><｜action｜>Search{END}"),
        ([USER | {"task": "action"}], CHAT, f"{HI}</think><｜action｜>"),
        ([USER | {"task": "query"}, USER], CHAT, f"<｜User｜>Hi{HI}</think>"),
        ([USER, ANSWER | {"task": "title"}], CHAT, f"{HI}</think>Hello{END}<｜title｜>"),
        ([USER, ANSWER | {"wo_eos": True}], CHAT, f"{HI}</think>Hello"),
        ([SYSTEM | {"response_format": {"type": "object"}}, USER], CHAT, f"Be short.{ADHERE}{HI}</think>"),
    ],
)  # fmt: skip
def test_conversations(folder: Path, messages: list[dict[str, Any]], variables: dict[str, Any], expected: str) -> None:
    assert rendered(folder, *messages, **variables) == expected


@pytest.mark.parametrize(
    ("before", "of_message"),
    [([SYSTEM], False), ([SYSTEM], True), ([{"role": "developer", "content": "Be short."}], False), ([], False)],
)
def test_tools(folder: Path, before: list[dict[str, Any]], of_message: bool) -> None:
    """All reasoning is kept, because it says why the tools were called."""
    tools = [TOOL, TOOL]
    told = [message | {"tools": tools} for message in before] if of_message else before
    found = rendered(folder, *told, USER, ANSWER, AGAIN, tools=None if of_message else tools, **THINK)
    head, start, rest = found.partition("\n\n## Tools\n")
    assert head == "Be short." * len(before)
    text, users, turns = (start.lstrip() + rest).partition("<｜User｜>")
    assert users + turns == f"{HI}<think>{GREETED}{ROME}<think>"
    schema = json.dumps(TOOL["function"])
    assert text.count(f"\n\n{schema}\n{schema}\n\n") == 1
    # The rest is the same text as in the examples that come with DeepSeek's code.
    digest = hashlib.sha256(text.replace(f"{schema}\n{schema}", "").encode()).hexdigest()
    assert digest == "c7d3159308f7d076bee8974ece110fda1f92f6e577306e602ba2b466b4dcd904"


NOTHING = hashlib.sha256().hexdigest()
THOROUGH = "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"
RELENTLESS = "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"


@pytest.mark.parametrize("published", [None, 'EFFORTS = {"max": "Reasoning Effort: Beyond maximum"}'])
@pytest.mark.parametrize(
    ("effort", "expected"),
    [(None, THOROUGH), ("minimal", NOTHING), ("low", NOTHING), ("medium", THOROUGH), ("high", THOROUGH),
     ("xhigh", THOROUGH), ("max", RELENTLESS)],
)  # fmt: skip
def test_effort(folder: Path, published: str | None, effort: str | None, expected: str) -> None:
    if published:
        (folder / "encoding").mkdir()
        (folder / "encoding/encoding_dsv4.py").write_text(published)
    assert digest_of_effort(folder, effort) == expected


@pytest.mark.parametrize(("effort", "expected"), [("low", NOTHING), (None, NOTHING), ("max", THOROUGH)])
def test_effort_of_the_first_release(folder: Path, effort: str | None, expected: str) -> None:
    (folder / "encoding").mkdir()
    (folder / "encoding/encoding_dsv4.py").write_text('MAX = "Reasoning Effort: Absolute maximum"')
    assert digest_of_effort(folder, effort) == expected


def digest_of_effort(folder: Path, effort: str | None) -> str:
    """The digest of the text that comes first; those expected are of the published texts."""
    text = rendered(folder, USER, **({"reasoning_effort": effort} if effort else {}))
    assert text.endswith(f"{HI}<think>")
    return hashlib.sha256(text.removesuffix(f"{HI}<think>").encode()).hexdigest()


@pytest.mark.parametrize(
    ("variables", "thinks"),
    [
        ({}, True), ({"thinking": True}, True), ({"enable_thinking": True}, True), ({"thinking": False}, False),
        ({"enable_thinking": False}, False), ({"reasoning_effort": "none"}, False),
        ({"thinking": True, "reasoning_effort": "none"}, False),
        ({"thinking": False, "reasoning_effort": "max"}, False),
    ],
)  # fmt: skip
def test_thinking_is_on_unless_it_is_off(folder: Path, variables: dict[str, Any], thinks: bool) -> None:
    text = rendered(folder, USER, **variables)
    assert text.endswith(f"{HI}<think>") if thinks else text == f"{HI}</think>"


@pytest.mark.parametrize("message", [{"role": "function", "content": ""}, USER | {"task": "unheard of"}])
def test_what_it_does_not_know(folder: Path, message: dict[str, Any]) -> None:
    with pytest.raises(TemplateRejection, match=r"no role function|no task unheard of"):
        rendered(folder, message)
