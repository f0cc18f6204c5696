"""Which parser has which name; a format's file is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from gateway.answers.parser import AnswerParser
from quire.errors import StartupError


def parser_class(parsers: Mapping[str, str], name: str) -> type[AnswerParser]:
    """The parser of that name.

    Args:
        parsers: name → module:class, of `gateway.reasoning_parsers` or `gateway.tool_parsers`.

    Raises:
        StartupError: there is none of that name.
    """
    if name not in parsers:
        raise StartupError(f"There is no parser {name!r}; choose one of {', '.join(parsers) or 'none'}.")
    module, _, class_name = parsers[name].partition(":")
    found: type[AnswerParser] = getattr(importlib.import_module(module), class_name)
    return found
