"""The parser of answers that the operator chooses: a built-in one, or one from a plugin."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from quire.errors import StartupError
from quire.registry import load_entry

ParserT = TypeVar("ParserT")


class Parsers(Generic[ParserT]):
    """Parsers of one kind by name. Passed to plugins."""

    def __init__(self, flag: str, plugin_flag: str, built_in: Mapping[str, str], base: type[Any]) -> None:
        """
        Args:
            flag: names the parser.
            plugin_flag: names the plugin.
            built_in: name → module:class.
            base: the class that all parsers derive from.
        """
        self._flag = flag
        self._plugin_flag = plugin_flag
        self._built_in = built_in
        self._base = base
        self._registered: dict[str, type[ParserT]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all parsers."""
        return sorted((*self._built_in, *self._registered))

    def register(self, name: str, parser: type[ParserT]) -> None:
        """Adds a parser.

        Args:
            name: the name for the flag.
            parser: a class derived from the kind's base class.

        Raises:
            StartupError: the name is taken, or the class is not such a parser or is abstract.
        """
        if name in self.names:
            raise StartupError(
                f"{self._plugin_flag} registers a parser named {name!r}, which already exists: give it another name."
            )
        if not (isinstance(parser, type) and issubclass(parser, self._base)) or inspect.isabstract(parser):
            raise StartupError(
                f"{self._plugin_flag} registers {parser!r} as {name!r}; a parser must be a class that derives from "
                f"{self._base.__module__}.{self._base.__name__} and implements its methods."
            )
        self._registered[name] = parser

    def load(self, path: str) -> None:
        """Runs the operator's file, and calls its `register` with these parsers.

        Raises:
            StartupError: it cannot be loaded, or registers what is not a parser.
        """
        try:
            register = getattr(self._module(Path(path)), "register", None)
            if not callable(register):
                raise StartupError(f"{self._plugin_flag} {path} has no function register(parsers).")
            register(self)
        except StartupError:
            raise
        except Exception as error:  # operator's code, which may fail in any way
            raise StartupError(
                f"{self._plugin_flag} {path} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def named(self, name: str) -> type[ParserT]:
        """Returns the parser of that name.

        Raises:
            StartupError: there is none.
        """
        if name in self._registered:
            return self._registered[name]
        if name not in self._built_in:
            raise StartupError(
                f"{self._flag} {name} does not exist. Choose one of {', '.join(self.names)}, or add one with "
                f"{self._plugin_flag}."
            )
        found: Any = load_entry(self._flag, self._built_in, name)
        return cast("type[ParserT]", found)

    def chosen(self, name: str | None, plugin: str) -> type[ParserT] | None:
        """Returns the parser of that name, which the plugin may register; None without a name.

        Args:
            plugin: the operator's file; empty for none.

        Raises:
            StartupError: there is none of that name, or the plugin cannot be loaded.
        """
        if plugin:
            self.load(plugin)
        return self.named(name) if name else None

    def _module(self, path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self._plugin_flag.removeprefix("--").replace("-", "_"), path)
        if spec is None or spec.loader is None:
            raise StartupError(f"{self._plugin_flag} {path} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
