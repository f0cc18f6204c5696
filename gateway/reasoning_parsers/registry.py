"""The reasoning parser that the operator chooses."""

from __future__ import annotations

from gateway.parser_plugins import Parsers
from gateway.reasoning_parsers import REASONING_PARSERS
from gateway.reasoning_parsers.base import ReasoningParser
from quire.errors import StartupError
from quire.options.reasoning import ReasoningOptions


def chosen_reasoning_parser(options: ReasoningOptions) -> type[ReasoningParser] | None:
    """Returns the parser that the options name; None if they name none.

    Raises:
        StartupError: there is none of that name, or the plugin cannot be loaded.
    """
    flags = "--reasoning-parser", "--reasoning-parser-plugin"
    parsers = Parsers[ReasoningParser](*flags, REASONING_PARSERS, ReasoningParser)
    return parsers.chosen(options.parser, options.plugin)


def closing_text(options: ReasoningOptions, parser: type[ReasoningParser] | None) -> str:
    """Returns what is forced before a reasoning's end mark once its budget is used up.

    Raises:
        StartupError: --reasoning-config has strings that are not the parser's marks, or there is no parser.
    """
    start, end = options.reasoning_strings
    if parser is None:
        if start or end:
            raise StartupError("--reasoning-config has strings, which need a --reasoning-parser that finds them.")
        return ""
    if start.strip() not in ("", parser.start_mark.strip()):
        raise StartupError(
            f"--reasoning-config has the reasoning_start_str {start!r}, but --reasoning-parser {options.parser} looks "
            f"for {parser.start_mark!r}. Leave it out, or choose another parser."
        )
    mark, text = parser.end_mark.strip(), end.rstrip()
    if text and not text.endswith(mark):
        raise StartupError(
            f"--reasoning-config has the reasoning_end_str {end!r}, which must end with {mark!r}, by which "
            f"--reasoning-parser {options.parser} finds the end of the reasoning."
        )
    return text.removesuffix(mark)
