"""The tool parser that the operator chooses: a built-in one, or one from a plugin."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import cast

from gateway.tool_parsers import TOOL_PARSERS
from gateway.tool_parsers.base import ToolParser
from quire.errors import StartupError
from quire.options.tools import ToolOptions
from quire.registry import load_entry

_FLAG, _PLUGIN_FLAG = "--tool-call-parser", "--tool-parser-plugin"


class ToolParsers:
    """Tool parsers by name. Passed to plugins."""

    def __init__(self) -> None:
        self._registered: dict[str, type[ToolParser]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all parsers."""
        return sorted((*TOOL_PARSERS, *self._registered))

    def register(self, name: str, parser: type[ToolParser]) -> None:
        """Adds a parser.

        Args:
            name: the name for `--tool-call-parser`.
            parser: a class derived from `gateway.tool_parsers.base.ToolParser`.

        Raises:
            StartupError: the name is taken, or the class is not a ToolParser or is abstract.
        """
        if name in self.names:
            raise StartupError(
                f"{_PLUGIN_FLAG} registers a parser named {name!r}, which already exists: give it another name."
            )
        if not (isinstance(parser, type) and issubclass(parser, ToolParser)) or inspect.isabstract(parser):
            raise StartupError(
                f"{_PLUGIN_FLAG} registers {parser!r} as {name!r}; a parser must be a class that derives from "
                "gateway.tool_parsers.base.ToolParser and implements its methods."
            )
        self._registered[name] = parser

    def named(self, name: str) -> type[ToolParser]:
        """Returns the parser of that name.

        Raises:
            StartupError: there is none.
        """
        if name in self._registered:
            return self._registered[name]
        if name not in TOOL_PARSERS:
            raise StartupError(
                f"{_FLAG} {name} does not exist. Choose one of {', '.join(self.names)}, or add one with {_PLUGIN_FLAG}."
            )
        return cast("type[ToolParser]", load_entry(_FLAG, TOOL_PARSERS, name))


def chosen_tool_parser(options: ToolOptions) -> type[ToolParser] | None:
    """Returns the parser that the options name; None if they name none.

    Raises:
        StartupError: there is none of that name, or the plugin cannot be loaded.
    """
    parsers = ToolParsers()
    if options.tool_parser_plugin:
        _load_plugin(options.tool_parser_plugin, parsers)
    return parsers.named(options.tool_call_parser) if options.tool_call_parser else None


def _load_plugin(path: str, parsers: ToolParsers) -> None:
    """Runs the operator's file, and calls its `register` with the parsers to add to."""
    try:
        module = _module(Path(path))
        register = getattr(module, "register", None)
        if not callable(register):
            raise StartupError(f"{_PLUGIN_FLAG} {path} has no function register(parsers).")
        register(parsers)
    except StartupError:
        raise
    except Exception as error:  # operator's code, which may fail in any way
        raise StartupError(f"{_PLUGIN_FLAG} {path} cannot be loaded: {type(error).__name__}: {error}") from error


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("quire_tool_parser_plugin", path)
    if spec is None or spec.loader is None:
        raise StartupError(f"{_PLUGIN_FLAG} {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
