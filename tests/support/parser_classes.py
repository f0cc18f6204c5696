"""Parsers by name; the file of a format is loaded on demand."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.answers.parser import AnswerParser
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
