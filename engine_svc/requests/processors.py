"""Checks the logits processors that requests name: only those that match the operator's pattern are imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import msgspec
import regex

from quire.errors import InvalidRequest, StartupError, Unavailable
from quire.logits_processor import load_class
from quire.sampling import LogitsProcessorCall

_PARAMETER = "logits_processors"
# Time limit of a match: a malicious name may make a pattern take forever.
_MATCH_SECONDS = 0.05
# An import that takes longer continues in its thread, and the request is told to try again.
_IMPORT_SECONDS = 0.2


class RequestedProcessors:
    """Checks the logits processors that requests name, and imports them."""

    def __init__(self, pattern: str | None) -> None:
        """
        Args:
            pattern: regular expression of allowed names; None allows none.

        Raises:
            StartupError: the pattern is not a regular expression.
        """
        try:
            self._pattern = None if pattern is None else regex.compile(pattern)
        except regex.error as error:
            raise StartupError(f"--logits-processor-pattern is not a valid regular expression: {error}.") from error
        self._importing: dict[str, threading.Thread] = {}

    def check(self, calls: Sequence[LogitsProcessorCall]) -> None:
        """Checks that all calls can be made.

        Raises:
            InvalidRequest: a name is not allowed, is not that of a processor, or does not accept the arguments.
            Unavailable: the module is still being imported.
        """
        for call in calls:
            if self._pattern is None or not self._matches(call.qualname):
                raise InvalidRequest(
                    f"logits_processors names {call.qualname[:100]!r}, which this server does not allow "
                    "(--logits-processor-pattern).",
                    parameter=_PARAMETER,
                )
            self._import(call.qualname)
            try:
                load_class(call.qualname)(*msgspec.json.decode(call.args), **msgspec.json.decode(call.kwargs))
            except Exception as error:
                raise InvalidRequest(
                    f"logits_processors: {call.qualname[:100]} cannot be created ({type(error).__name__}: "
                    f"{str(error)[:200]}).",
                    parameter=_PARAMETER,
                ) from error

    def _matches(self, name: str) -> bool:
        assert self._pattern is not None
        try:
            return self._pattern.fullmatch(name, timeout=_MATCH_SECONDS) is not None
        except TimeoutError:
            return False

    def _import(self, name: str) -> None:
        """Imports the module in a thread, so that the event loop is not blocked for long."""
        module = name.rpartition(":" if ":" in name else ".")[0]
        thread = self._importing.get(module)
        if thread is None:
            if module in sys.modules:
                return
            thread = self._importing[module] = threading.Thread(target=_try_load, args=(name,), daemon=True)
            thread.start()
        thread.join(_IMPORT_SECONDS)
        if thread.is_alive():
            raise Unavailable(f"{name[:100]} is being loaded; try again in a moment.")
        del self._importing[module]


def _try_load(name: str) -> None:
    try:
        load_class(name)
    except ValueError:  # reported by `check`
        return
