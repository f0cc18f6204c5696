"""Which parser a `--reasoning-parser` name selects, and what a plugin may register."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.answers.context import NO_CONTEXT
from gateway.answers.deltas import Content, Finish, FinishReason, Reasoning
from gateway.reasoning_parsers.registry import chosen_reasoning_parser, closing_text
from gateway.reasoning_parsers.tags import ThinkTags
from quire.errors import StartupError
from quire.options.reasoning import ReasoningOptions

# The plugin from docs/reasoning.md.
EXAMPLE = Path(__file__).parents[3] / "docs" / "reasoning.md"
END = Finish(FinishReason.STOP)


def plugin(folder: Path, text: str, name: str = "pondered") -> ReasoningOptions:
    path = folder / "plugin.py"
    path.write_text(text, encoding="utf-8")
    return ReasoningOptions(reasoning_parser=name, reasoning_parser_plugin=str(path))


def example() -> str:
    _, _, rest = EXAMPLE.read_text(encoding="utf-8").partition("## Writing your own parser")
    return rest.partition("```python\n")[2].partition("```")[0]


def test_a_name_of_ours(tmp_path: Path) -> None:
    assert chosen_reasoning_parser(ReasoningOptions("qwen3")) is ThinkTags
    assert chosen_reasoning_parser(plugin(tmp_path, example(), "qwen3")) is ThinkTags
    assert chosen_reasoning_parser(ReasoningOptions()) is None


def test_the_plugin_of_the_documentation(tmp_path: Path) -> None:
    parser_class = chosen_reasoning_parser(plugin(tmp_path, example()))
    assert parser_class is not None
    parser = parser_class(NO_CONTEXT)
    deltas = [*parser.feed(Content("<pond")), *parser.feed(Content("er>hm</ponder>yes")), *parser.feed(END)]
    assert deltas == [Reasoning("hm"), Content("yes"), END]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"has no function register\(parsers\)"),
        ("def register(parsers): parsers.register('pondered', dict)", "gateway.reasoning_parsers.base.ReasoningParser"),
        ("def register(parsers): pass", "--reasoning-parser pondered does not exist.*or add one with"),
    ],
)
def test_a_plugin_that_is_wrong_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(StartupError, match=f"(?s){why}.*"):
        chosen_reasoning_parser(plugin(tmp_path, text))


def configured(**config: str) -> ReasoningOptions:
    """The options of --reasoning-config."""
    options = ReasoningOptions(reasoning_config=config)
    options.check()
    return options


def test_what_closes_the_reasoning() -> None:
    options = configured(reasoning_parser="qwen3", reasoning_start_str="<think>", reasoning_end_str="Now.\n</think>\n")
    assert chosen_reasoning_parser(options) is ThinkTags
    assert closing_text(options, ThinkTags) == "Now.\n"
    assert closing_text(configured(reasoning_parser="qwen3", reasoning_end_str="</think>"), ThinkTags) == ""
    assert closing_text(ReasoningOptions(), None) == ""


@pytest.mark.parametrize(
    ("config", "parser", "words"),
    [
        ({"reasoning_start_str": "<ponder>"}, ThinkTags, "reasoning_start_str '<ponder>'.*looks for '<think>'"),
        ({"reasoning_end_str": "That is it."}, ThinkTags, "must end with '</think>'"),
        ({"reasoning_end_str": "</think>"}, None, "need a --reasoning-parser"),
    ],
)
def test_other_marks_are_refused(config: dict[str, str], parser: type[ThinkTags] | None, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        closing_text(ReasoningOptions(reasoning_config=config), parser)


def test_two_parsers_are_refused() -> None:
    with pytest.raises(
        StartupError, match="--reasoning-config has the reasoning_parser 'qwen3' and --reasoning-parser"
    ):
        ReasoningOptions("glm45", reasoning_config={"reasoning_parser": "qwen3"}).check()
