"""What a prompt implies about the thinking in its answers, and what templates and services are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.protocol.completions import CompletionRequest
from gateway.requests.convert import _needed_marks
from gateway.requests.messages import template_messages
from gateway.requests.template_variables import template_variables
from gateway.requests.thinking import MarkTokens, Thinking, thinking_after
from quire.errors import InvalidRequest, StartupError
from quire.options.base import to_arguments
from quire.options.gateway import GatewayOptions
from quire.options.reasoning import ReasoningOptions
from quire.reasoning import ReasoningMarks
from quire.structured.base import Constraint
from tests.support.parser_classes import reasoning_parser

CONSTRAINT = Constraint.of("guidance", b"")
TOKENS = MarkTokens((1, 2), (3,), (), (4, 5))


def thinking(name: str, prompt: str, *continued: str) -> Thinking:
    return thinking_after(prompt, reasoning_parser(name), TOKENS, continued=continued)


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ("glm45", "<|assistant|><think>", True),
        ("glm45", "<|assistant|>\n<think></think>\n", False),
        ("deepseek_r1", "<|Assistant|><think>\n", True),
        ("deepseek_r1", "<|Assistant|>", True),  # this model thinks regardless
        ("deepseek_r1", "<think>hm</think>so<|User|>and?<|Assistant|>", True),
        ("deepseek_r1", "<|Assistant|></think>", False),
        ("hunyuan_a13b", "<|extra_0|><think>\n\n</think>\n", False),
        ("seed_oss", "<seed:think>\n<seed:cot_budget_reflect>0</seed:cot_budget_reflect>\n</seed:think>", False),
        ("openai_gptoss", "<|start|>assistant", True),
    ],
)
def test_whether_answers_begin_with_thinking(name: str, prompt: str, is_open: bool) -> None:
    assert thinking(name, prompt).is_open == is_open


@pytest.mark.parametrize(
    ("before", "continued", "is_open"),
    [
        ("<|im_start|>assistant\n", ["<think>\nI wonder"], True),
        ("<|im_start|>assistant\n<think>\n", ["I wonder"], True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ["<think>\nI wonder"], True),
        ("<|im_start|>assistant\n", ["<think>\n", "I wonder"], True),
        ("<|im_start|>assistant\n<think>\n", ["I wonder</think>So it"], False),
        ("<|im_start|>assistant\n", ["<think>\nI wonder</think>", "So it"], False),
        ("<|im_start|>assistant\n<think>\nhm\n</think>\n\n", ["So it"], False),
        ("<|im_start|>assistant\n", ["So it"], False),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", ["It means"], False),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", ["The mark <think> means"], False),
        ("What does </think> mean?<|im_end|>\n<|im_start|>assistant\n<think>", ["I wonder"], True),
    ],
)
def test_an_answer_that_is_gone_on_with(before: str, continued: list[str], is_open: bool) -> None:
    assert thinking("qwen3", before + "".join(continued), *continued).is_open == is_open


def test_marks_for_services() -> None:
    opened = thinking("qwen3", "assistant\n<think>\n")
    assert opened.marks == ReasoningMarks((1, 2), (3,), True, True, (4, 5))
    assert thinking("qwen3", "assistant\n").marks == ReasoningMarks((1, 2), (3,), False, True, (4, 5))
    assert thinking("step3", "assistant\n").marks == ReasoningMarks((1, 2), (3,), False, False, (4, 5))
    closed = thinking("qwen3", "assistant\n<think>\n\n</think>\n\n")
    assert (closed.marks, closed.counters(2)) == (None, ())
    counter, _ = opened.counters(2)
    counter.advance([9, 9, 3, 4, 9])
    assert counter.num_tokens == 2


@pytest.mark.parametrize(
    ("name", "prompt", "thinks"),
    [
        ("qwen3", "assistant\n", False),
        ("qwen3", "assistant\n<think>\n", True),  # the template opens it, whatever the request says
        ("deepseek_r1", "<|Assistant|>", True),  # thinking cannot be turned off
        ("openai_gptoss", "<|start|>assistant", True),
    ],
)
def test_thinking_that_only_the_prompt_may_open(name: str, prompt: str, thinks: bool) -> None:
    found = thinking_after(prompt, reasoning_parser(name), TOKENS, may_open=False)
    assert (found.is_open, found.marks is not None) == (thinks, thinks)


def test_channels_are_counted_each_time() -> None:
    tokens = MarkTokens((1, 2), (1, 5), (3,), ())
    counters = thinking_after("<|start|>assistant", reasoning_parser("openai_gptoss"), tokens).counters(1)
    # Analysis of two tokens, a call, analysis of one token, the answer.
    counters[0].advance([1, 2, 9, 9, 3, 8, 1, 7, 9, 9, 3, 8, 1, 2, 9, 3, 8, 1, 5, 9])
    assert counters[0].num_tokens == 3


@pytest.mark.parametrize(
    ("effort", "kwargs", "expected"),
    [
        (None, None, {"reasoning_effort": "medium"}),
        (None, {"reasoning_effort": None}, {"reasoning_effort": None}),
        ("high", None, {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ("none", {}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        (
            "low",
            {"enable_thinking": False, "x": 1},
            {"reasoning_effort": "low", "enable_thinking": False, "thinking": False, "x": 1},
        ),
        ("none", {"thinking": True}, {"reasoning_effort": "none", "enable_thinking": True, "thinking": True}),
    ],
)
def test_what_templates_are_told(effort: Any, kwargs: Any, expected: dict[str, Any]) -> None:
    assert template_variables(kwargs, effort, "medium") == expected


@pytest.mark.parametrize(
    ("effort", "kwargs", "expected"),
    [
        (None, None, {"reasoning_effort": "medium", "enable_thinking": False, "tone": "dry"}),
        (None, {"tone": "warm"}, {"reasoning_effort": "medium", "enable_thinking": False, "tone": "warm"}),
        (None, {"thinking": True}, {"reasoning_effort": "medium", "thinking": True, "tone": "dry"}),
        ("low", None, {"reasoning_effort": "low", "enable_thinking": True, "thinking": True, "tone": "dry"}),
    ],
)
def test_servers_have_defaults_for_templates(effort: Any, kwargs: Any, expected: dict[str, Any]) -> None:
    defaults = {"enable_thinking": False, "tone": "dry"}
    assert template_variables(kwargs, effort, "medium", defaults=defaults) == expected


def test_defaults_for_templates_are_no_fields_of_requests() -> None:
    with pytest.raises(StartupError, match="must not set 'tools'"):
        GatewayOptions(default_chat_template_kwargs={"tools": []}).check()


def test_efforts_may_be_left_to_templates() -> None:
    for of_server in ("", None):
        assert template_variables({"x": 1}, None, of_server) == {"x": 1}
        assert template_variables(None, None, of_server) == {}
        assert template_variables(None, "low", of_server)["reasoning_effort"] == "low"


@pytest.mark.parametrize(("set_one", "default"), [(None, "medium"), ("", ""), ("medium", ""), ("high", "")])
def test_an_effort_that_the_operator_sets_is_no_default(set_one: str | None, default: str) -> None:
    """`quire serve` passes options on to the gateway, even if they say the same as the default."""
    options = GatewayOptions(reasoning=ReasoningOptions(reasoning_effort=set_one))
    assert options.reasoning.default_effort == default
    assert to_arguments(options) == ([] if set_one is None else ["--reasoning-effort", set_one], {})


@pytest.mark.parametrize("effort", ["huge", ""])
def test_an_effort_that_does_not_exist(effort: str) -> None:
    with pytest.raises(InvalidRequest, match=r"reasoning_effort is .*none, minimal, low, medium, high, xhigh, max"):
        template_variables(None, effort, "medium")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_messages_have_their_reasoning_under_the_names_that_templates_read(name: str) -> None:
    (message,) = msgspec.json.decode(template_messages([{"role": "assistant", "content": "so", name: "why"}]).json)
    named = {"reasoning": "why", "reasoning_content": "why", "thinking": "why"}
    assert message == {"role": "assistant", "content": "so", **named}
    with pytest.raises(InvalidRequest, match=rf"messages\[0\].{name} must be a string"):
        template_messages([{"role": "assistant", "content": "so", name: ["why"]}])


def test_messages_without_reasoning_have_no_field_for_it() -> None:
    given = [{"role": "assistant", "content": "so", "reasoning_content": None}]
    assert msgspec.json.decode(template_messages(given).json) == [{"role": "assistant", "content": "so"}]


def test_reasoning_that_is_turned_on_needs_a_parser() -> None:
    GatewayOptions(reasoning=ReasoningOptions("qwen3", enable_reasoning=True)).check()
    with pytest.raises(StartupError, match=r"--enable-reasoning is deprecated.*deepseek_r1, deepseek_v3"):
        GatewayOptions(reasoning=ReasoningOptions(enable_reasoning=True)).check()
    with pytest.raises(StartupError, match=r"which is qwen3: leave it out"):
        GatewayOptions(reasoning=ReasoningOptions("qwen3", enable_reasoning=False)).check()
    with pytest.raises(StartupError, match=r"--reasoning-parser r1 does not exist.*qwen3"):
        GatewayOptions(reasoning=ReasoningOptions("r1")).check()


@pytest.mark.parametrize(
    ("config", "constraint", "budget", "needed"),
    [
        ({}, None, None, False),
        ({}, None, 5, True),
        ({}, CONSTRAINT, None, True),
        ({"enable_in_reasoning": True}, CONSTRAINT, None, False),
        ({"enable_in_reasoning": True}, None, 5, True),
    ],
)
def test_engines_are_told_of_marks_that_something_begins_behind(
    config: dict[str, Any], constraint: Constraint | None, budget: int | None, needed: bool
) -> None:
    options = GatewayOptions(reasoning=ReasoningOptions(structured_outputs_config=config))
    body = CompletionRequest(prompt="A", thinking_token_budget=budget)
    marks = ReasoningMarks((1,), (2,))
    assert _needed_marks(body, marks, constraint, options) == (marks if needed else None)


def test_a_budget_does_not_go_with_a_constraint_of_the_thinking() -> None:
    options = GatewayOptions(reasoning=ReasoningOptions(structured_outputs_config={"enable_in_reasoning": True}))
    body = CompletionRequest(prompt="A", thinking_token_budget=5)
    with pytest.raises(InvalidRequest, match="enable_in_reasoning") as refused:
        _needed_marks(body, ReasoningMarks((1,), (2,)), CONSTRAINT, options)
    assert refused.value.parameter == "thinking_token_budget"
