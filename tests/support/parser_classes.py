"""Parsers by name; the file of a format is loaded on demand."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.answers.parser import AnswerParser
from gateway.reasoning_parsers.base import ReasoningParser
from gateway.reasoning_parsers.registry import chosen_reasoning_parser
from gateway.tool_parsers.base import ToolParser
from gateway.tool_parsers.registry import chosen_tool_parser
from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from quire.registry import load_entry


def parser_class(parsers: Mapping[str, str], name: str) -> type[AnswerParser]:
    """The parser of that name.

    Args:
        parsers: name → module:class, of `gateway.reasoning_parsers` or `gateway.tool_parsers`.

    Raises:
        StartupError: there is none of that name.
    """
    found: type[AnswerParser] = load_entry("The parser", parsers, name)
    return found


def tool_parser(name: str) -> type[ToolParser]:
    """The tool parser of that name."""
    found = chosen_tool_parser(ToolOptions(tool_call_parser=name))
    assert found is not None
    return found


def reasoning_parser(name: str) -> type[ReasoningParser]:
    """The reasoning parser of that name."""
    found = chosen_reasoning_parser(ReasoningOptions(name))
    assert found is not None
    return found
