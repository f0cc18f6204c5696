"""The tool parser that the operator chooses."""

from __future__ import annotations

from gateway.parser_plugins import Parsers
from gateway.tool_parsers import TOOL_PARSERS
from gateway.tool_parsers.base import ToolParser
from quire.options.tools import HARMONY_CALLS, ToolOptions


def chosen_tool_parser(options: ToolOptions) -> type[ToolParser] | None:
    """Returns the parser that the options name; None if they name none, or if the reasoning parser reads calls too.

    Raises:
        StartupError: there is none of that name, or the plugin cannot be loaded.
    """
    if options.tool_call_parser == HARMONY_CALLS:
        return None
    flags = "--tool-call-parser", "--tool-parser-plugin"
    parsers = Parsers[ToolParser](*flags, TOOL_PARSERS, ToolParser)
    return parsers.chosen(options.tool_call_parser, options.tool_parser_plugin)
