"""Which parser a `--tool-call-parser` name selects, and what a plugin may register."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.answers.context import NO_CONTEXT
from gateway.answers.deltas import Content, ToolCall
from gateway.tool_parsers.registry import chosen_tool_parser
from gateway.tool_parsers.tagged_json import Hermes
from quire.errors import StartupError
from quire.options.tools import ToolOptions
from tests.support.tool_formats import END

# The plugin from docs/tools.md.
EXAMPLE = Path(__file__).parents[3] / "docs" / "tools.md"
MINE = """
from gateway.tool_parsers.tagged_json import Hermes
class Mine(Hermes):
    begins = ("<mine>",)
"""
ABSTRACT = "from gateway.tool_parsers.base import ToolParser\n"


def plugin(folder: Path, text: str) -> ToolOptions:
    path = folder / "plugin.py"
    path.write_text(text, encoding="utf-8")
    return ToolOptions(tool_call_parser="mine", tool_parser_plugin=str(path))


def test_a_name_of_ours() -> None:
    assert chosen_tool_parser(ToolOptions(tool_call_parser="qwen")) is Hermes
    assert chosen_tool_parser(ToolOptions()) is None


def test_an_unknown_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"hermess does not exist.*hermes, hunyuan_a13b.*--tool-parser-plugin"):
        chosen_tool_parser(ToolOptions(tool_call_parser="hermess"))
    options = plugin(tmp_path, MINE + "def register(parsers): parsers.register('yours', Mine)")
    with pytest.raises(StartupError, match=r"mine does not exist.*xlam, yours"):
        chosen_tool_parser(options)


def test_the_plugin_of_the_documentation(tmp_path: Path) -> None:
    _, _, example = EXAMPLE.read_text(encoding="utf-8").partition("```python\n")
    parser_class = chosen_tool_parser(plugin(tmp_path, example.partition("```")[0].replace("shouted", "mine")))
    assert parser_class is not None
    parser = parser_class(NO_CONTEXT)
    deltas = [*parser.feed(Content('so: CALL now {"a": ')), *parser.feed(Content("1} END.")), *parser.feed(END)]
    assert deltas[0] == Content("so:")
    calls = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert (calls[0].name, "".join(call.arguments for call in calls)) == ("now", '{"a": 1}')
    assert deltas[-2:] == [Content("."), END]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"has no function register\(parsers\)"),
        ("1 +", "cannot be loaded: SyntaxError"),
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError.*no_such_module"),
        ("def register(parsers): raise KeyError('x')", "cannot be loaded: KeyError"),
        (MINE + "def register(parsers): parsers.register('hermes', Mine)", "'hermes', which already exists"),
        ("def register(parsers): parsers.register('mine', dict)", "a class that derives from"),
        (ABSTRACT + "def register(parsers): parsers.register('mine', ToolParser)", "implements its methods"),
    ],
)
def test_a_plugin_that_is_wrong_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(StartupError, match=f"(?s)--tool-parser-plugin.*{why}"):
        chosen_tool_parser(plugin(tmp_path, text))


@pytest.mark.parametrize("name", ["nothing.py", "nothing.txt", "."])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    options = ToolOptions(tool_call_parser="mine", tool_parser_plugin=str(tmp_path / name))
    with pytest.raises(StartupError, match="--tool-parser-plugin"):
        chosen_tool_parser(options)
