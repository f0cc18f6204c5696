"""DeepSeek V3.2, which comes without a chat template, renders conversations as its published code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenizer_svc.chat_template import make_environment
from tokenizer_svc.deepseek_template import deepseek_templates

SYSTEM, USER = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}
AGAIN = {"role": "user", "content": "And in Rome?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = {
    "role": "assistant", "content": None, "reasoning_content": "Look.",
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}},
        {"type": "function", "function": {"name": "weather", "arguments": {}}},
    ],
}  # fmt: skip
RESULTS = [{"role": "tool", "content": text} for text in ("rain", "sun")]
CALLED = (
    '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">[1, 2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="weather">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>'
)
ASKED = "<｜User｜>And in Rome?<｜Assistant｜>"
FOUND = "\n\n<function_results>\n<result>rain</result>\n<result>sun</result>\n</function_results>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v32"}))
    return tmp_path


def rendered(folder: Path, *messages: dict[str, Any], add_generation_prompt: bool = True, **variables: Any) -> str:
    template = make_environment().from_string(deepseek_templates(folder)["default"])
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)


@pytest.mark.parametrize(
    ("messages", "variables", "expected"),
    [
        ([SYSTEM, USER], {}, "Be short.<｜User｜>Hi<｜Assistant｜></think>"),
        ([USER], {"thinking": True}, "<｜User｜>Hi<｜Assistant｜><think>"),
        ([USER], {"add_generation_prompt": False}, "<｜User｜>Hi"),
        (
            [USER, ANSWER, AGAIN], {"enable_thinking": True},
            f"<｜User｜>Hi<｜Assistant｜></think>Hello<｜end▁of▁sentence｜>{ASKED}<think>",
        ),
        (
            [USER, ANSWER], {"enable_thinking": True},
            "<｜User｜>Hi<｜Assistant｜><think>A greeting.</think>Hello<｜end▁of▁sentence｜>",
        ),
        (
            [USER, CALLS, *RESULTS], {"thinking": True},
            f"<｜User｜>Hi<｜Assistant｜><think>Look.</think>{CALLED}{FOUND}\n\n<think>",
        ),
        ([USER, CALLS, *RESULTS], {}, f"<｜User｜>Hi<｜Assistant｜></think>{CALLED}{FOUND}\n\n</think>"),
        (
            [USER, CALLS, *RESULTS, ANSWER, AGAIN], {"thinking": True},
            f"<｜User｜>Hi<｜Assistant｜></think>{CALLED}{FOUND}\n\n</think>Hello<｜end▁of▁sentence｜>{ASKED}<think>",
        ),
    ],
)  # fmt: skip
def test_conversations(folder: Path, messages: list[dict[str, Any]], variables: dict[str, Any], expected: str) -> None:
    assert rendered(folder, *messages, **variables) == f"<｜begin▁of▁sentence｜>{expected}"


@pytest.mark.parametrize("before", [[SYSTEM], [{"role": "developer", "content": "Be short."}], []])
def test_tools(folder: Path, before: list[dict[str, Any]]) -> None:
    found = rendered(folder, *before, USER, tools=[TOOL, TOOL])
    start = "<｜begin▁of▁sentence｜>" + "Be short." * len(before) + "\n\n## Tools\nYou have access to a set of tools"
    schema = json.dumps(TOOL["function"])
    end = f"\n<functions>\n{schema}\n{schema}\n</functions>\n<｜User｜>Hi<｜Assistant｜></think>"
    assert found.startswith(start) and found.endswith(end)
    assert found.count("\n") == 28 and "\n\n" not in found.removeprefix(start)


def test_other_models_have_none(tmp_path: Path) -> None:
    assert deepseek_templates(None) == deepseek_templates(tmp_path) == {}
    for text in ("{", "[]", '{"model_type": "deepseek_v3"}', '{"model_type": "deepseek_v41"}'):
        (tmp_path / "config.json").write_text(text)
        assert deepseek_templates(tmp_path) == {}
