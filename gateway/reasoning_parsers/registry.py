"""The reasoning parser that the operator chooses."""

from __future__ import annotations

from gateway.parser_plugins import Parsers
from gateway.reasoning_parsers import REASONING_PARSERS
from gateway.reasoning_parsers.base import ReasoningParser
from quire.options.reasoning import ReasoningOptions


def chosen_reasoning_parser(options: ReasoningOptions) -> type[ReasoningParser] | None:
    """Returns the parser that the options name; None if they name none.

    Raises:
        StartupError: there is none of that name, or the plugin cannot be loaded.
    """
    flags = "--reasoning-parser", "--reasoning-parser-plugin"
    parsers = Parsers[ReasoningParser](*flags, REASONING_PARSERS, ReasoningParser)
    return parsers.chosen(options.parser, options.plugin)
