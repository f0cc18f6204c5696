"""How each model family marks its thinking, following its chat template."""

from __future__ import annotations

import pytest

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import AnswerContext, Tool, ToolChoice
from gateway.answers.deltas import ChoiceUpdate, Content, Finish, FinishReason, ToolCall
from gateway.reasoning_parsers import REASONING_PARSERS
from tests.support.parser_classes import parser_class, reasoning_parser

END = Finish(FinishReason.STOP)


def read(name: str, text: str, is_open: bool = False) -> tuple[str, str]:
    """Parses the text and returns (reasoning, content)."""
    parser = parser_class(REASONING_PARSERS, name)(AnswerContext(thinking_is_open=is_open))
    choice = CollectedChoice()
    choice.add(ChoiceUpdate(0, (*parser.feed(Content(text)), *parser.feed(END)), ()))
    return choice.reasoning, choice.content


@pytest.mark.parametrize(
    "name",
    [
        "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "glm4_moe", "glm45", "glm47", "holo2",
        "hunyuan_a13b", "kimi_k2", "ling3", "mimo", "minimax_m2", "nemotron_v3", "olmo3", "qwen3", "step3", "step3p5",
    ],
)  # fmt: skip
def test_tags(name: str) -> None:
    assert read(name, "<think>\nwhy\n\nhow\n</think>\n\nso\n") == ("why\n\nhow", "so\n")
    assert read(name, "\n<think>why</think>so") == ("why", "so")
    assert read(name, "why\n</think>\n\nso", is_open=True) == ("why", "so")
    assert read(name, "\n<think>\nwhy\n</think>\nso", is_open=True) == ("why", "so")
    # Tags inside an answer are content, whether or not thinking comes first.
    assert read(name, "<think></think>a <think>b</think>") == ("", "a <think>b</think>")
    assert read(name, "a <think>b</think>") == ("", "a <think>b</think>")


@pytest.mark.parametrize("name", ["deepseek_r1", "glm45", "granite", "hunyuan_a13b", "mistral", "qwen3", "seed_oss"])
def test_thinking_that_never_ends_is_thinking(name: str) -> None:
    assert read(name, "why\nhow\n", is_open=True) == ("why\nhow\n", "")
    assert read(name, "why </", is_open=True) == ("why </", "")
    assert read(name, "", is_open=True) == ("", "")


@pytest.mark.parametrize("name", ["glm45", "granite", "hunyuan_a13b", "mistral", "qwen3"])
def test_what_nothing_opens_is_content(name: str) -> None:
    assert read(name, "\n  so\n") == ("", "\n  so\n")
    assert read(name, "Here is <thi") == ("", "Here is <thi")
    assert read(name, "<thi") == ("", "<thi")


def test_brackets() -> None:
    assert read("mistral", "[THINK]why[/THINK]so") == ("why", "so")
    for name in ("cohere_command3", "cohere_command4"):
        assert read(name, "<|START_THINKING|>why<|END_THINKING|>so") == ("why", "so")
    assert read("hy_v4", "why</think:6124c78e>so", is_open=True) == ("why", "so")
    assert read("gemma4", "<|channel>thought\nwhy\n<channel|>so") == ("why", "so")


def test_a_budget_is_part_of_the_thinking() -> None:
    budget = "<seed:cot_budget_reflect>I have used 9 tokens.</seed:cot_budget_reflect>"
    assert read("seed_oss", f"<seed:think>\nwhy\n{budget}\n</seed:think>so") == (f"why\n{budget}", "so")


def test_answers_in_tags() -> None:
    assert read("hunyuan_a13b", "<think>\nwhy\n</think>\n<answer>\nso\n</answer>") == ("why", "so")
    assert read("hunyuan_a13b", "<answer>\nso\n</answer>\n") == ("", "so")
    assert read("hunyuan_a13b", "<think>\nwhy\n</think>\n<answer>\nso </answer> and\n</ans") == (
        "why", "so </answer> and\n</ans",
    )  # fmt: skip
    assert read("hunyuan_a13b", "so</answer>") == ("", "so</answer>")
    assert read("ernie45", "why\n</think>\n\n<response>\nso\n</response>\n", is_open=True) == ("why", "so")


@pytest.mark.parametrize(
    ("name", "calls", "end"),
    [
        ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>', "</think>"),
        ("deepseek_v41", '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>', "</think>"),
        ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="f"<|sep|>', "<|close|>think<|sep|>"),
        ("solar_open2", "<|tool_call:start|>f\n<|tool_call:end|>", "<|think:end|>"),
    ],
)
def test_calls_end_thinking(name: str, calls: str, end: str) -> None:
    assert read(name, f"why\n\n{calls}", is_open=True) == ("why", calls)
    assert read(name, f"why{end}\n\n{calls}", is_open=True) == ("why", calls)
    assert read(name, f"so {calls}") == ("", f"so {calls}")
    assert read(name, f"why {calls[:10]}", is_open=True) == (f"why {calls[:10]}", "")


def test_an_answer_may_begin_with_the_end_of_no_thinking() -> None:
    assert read("minimax_m3", "<mm:think>why</mm:think>so") == ("why", "so")
    assert read("minimax_m3", "\n</mm:think>\n\nso </mm:think>") == ("", "so </mm:think>")
    assert read("minimax_m3", "</mm:think>so", is_open=True) == ("", "so")
    assert read("minimax_m3", "</mm:thi") == ("", "</mm:thi")
    assert read("qwen3", "</think>so") == ("", "</think>so")


def test_text_has_a_channel_of_its_own() -> None:
    text = "<|open|>response<|sep|>so<|close|>response<|sep|>"
    assert read("kimi_k3", f"why<|close|>think<|sep|>{text}<|close|>message<|sep|>", is_open=True) == ("why", "so")
    assert read("kimi_k3", f"<|open|>think<|sep|>why{text}") == ("why", "so")
    assert read("kimi_k3", "so<|close|>response<|sep|><|open|>tools<|sep|>") == ("", "so<|open|>tools<|sep|>")
    assert read("kimi_k3", "so<|close|>resp") == ("", "so<|close|>resp")


def test_thinking_may_stay_in_the_content() -> None:
    name = "minimax_m2_append_think"
    assert read(name, "why\n</think>\n\nso", is_open=True) == ("", "<think>why\n</think>\n\nso")
    assert read(name, "\n<think>why</think>so", is_open=True) == ("", "\n<think>why</think>so")
    assert read(name, "<thi", is_open=True) == ("", "<think><thi")
    assert read(name, "", is_open=True) == ("", "")
    assert read(name, "so") == ("", "so")


def test_sentences() -> None:
    for start, end in (
        ("Here is my thought process:", "Here is my response:"),
        ("Here's my thought process:\n\n", "Here's my response:"),
    ):
        assert read("granite", f"{start} why\n\n{end} so") == ("why", "so")
    assert read("granite", "<think>why</think><response>so</response>") == ("why", "so")


def test_channels() -> None:
    analysis, final = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    whole = f"{analysis}why<|end|><|start|>assistant{final}so<|return|>"
    assert read("openai_gptoss", whole) == ("why", "so")
    assert read("openai_gptoss", f"{final}so") == ("", "so")
    preamble = "<|start|>assistant<|channel|>commentary<|message|>first, <|end|>"
    more = f"<|start|>assistant{analysis} and how<|end|>"
    assert read("openai_gptoss", f"{analysis}why<|end|>{preamble}{more}<|start|>assistant{final}so") == (
        "why and how", "first, so",
    )  # fmt: skip
    # Truncated in the text and in a header.
    assert read("openai_gptoss", f"{analysis}why") == ("why", "")
    assert read("openai_gptoss", f"{analysis}why<|end|><|start|>assistant<|channel|>fin") == ("why", "")
    # A tool that was not offered, and text that is not a header.
    assert read("openai_gptoss", " to=browser.search<|channel|>commentary <|message|>{}<|call|>") == ("{}", "")
    assert read("openai_gptoss", "<|channel|>" + "x" * 400) == ("", "<|channel|>" + "x" * 400)
    assert read("openai_gptoss", " to=you") == ("", " to=you")


def test_calls_in_channels() -> None:
    """A preamble, two calls with thinking between them, and the final answer."""
    text = (
        "<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}'
        "<|call|><|start|>assistant<|channel|>analysis<|message|>And the time.<|end|>"
        "<|start|>assistant to=functions.now<|channel|>commentary<|message|><|call|>"
        "<|start|>assistant<|channel|>final<|message|>So.<|return|>"
    )

    def found(context: AnswerContext) -> tuple[str, str, list[tuple[str, str]]]:
        parser = parser_class(REASONING_PARSERS, "openai_gptoss")(context)
        deltas = [delta for piece in text for delta in parser.feed(Content(piece))] + [*parser.feed(END)]
        assert all(delta.id.startswith("call_") for delta in deltas if isinstance(delta, ToolCall) and delta.name)
        choice = CollectedChoice()
        choice.add(ChoiceUpdate(0, tuple(deltas), ()))
        return choice.reasoning, choice.content, [(call.name, call.arguments) for call in choice.tool_calls]

    tools = (Tool("get_weather"), Tool("now"))
    calls = [("get_weather", '{"city": "Rome"}'), ("now", "{}")]
    assert found(AnswerContext(tools)) == ("And the time.", "I look.So.", calls)
    for without in (AnswerContext(), AnswerContext(tools, ToolChoice.NONE)):
        assert found(without) == ("And the time.", 'I look.{"city": "Rome"}So.', [])


@pytest.mark.parametrize(
    "name",
    ["granite", "hunyuan_a13b", "kimi_k3", "minimax_m2_append_think", "minimax_m3", "mistral", "openai_gptoss", "qwen3",
     "seed_oss"],
)  # fmt: skip
@pytest.mark.parametrize(
    "word", ["\n", " \n", "<", "[", "<|end|>", "<|start|>", "<|channel|>", "</think", "\n</answer>", "H"]
)
def test_what_waits_stays_small(name: str, word: str) -> None:
    """A parser holds back little text, even if all of it could start a marker, so no output makes it slow."""
    parser = reasoning_parser(name)(AnswerContext((Tool("f"),), thinking_is_open=True))
    for _ in range(1000):
        parser.feed(Content(word))
        assert len(parser.held) - parser.at < 300
