"""Which logits processors requests may name: those that the operator's pattern matches, once they are imported."""

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
# A pattern may take for ever on a name that is made for that.
_MATCH_SECONDS = 0.05
# An import that takes longer goes on in its thread, and its request is told to come again.
_IMPORT_SECONDS = 0.2


class RequestedProcessors:
    """Checks what requests name."""

    def __init__(self, pattern: str | None) -> None:
        """
        Args:
            pattern: regular expression of names; None allows none.

        Raises:
            StartupError: it is none.
        """
        try:
            self._pattern = None if pattern is None else regex.compile(pattern)
        except regex.error as error:
            raise StartupError(f"--logits-processor-pattern is no regular expression: {error}.") from error
        self._importing: dict[str, threading.Thread] = {}

    def check(self, calls: Sequence[LogitsProcessorCall]) -> None:
        """Refuses what could not be followed.

        Raises:
            InvalidRequest: a name is not allowed, is no processor's, or takes other arguments.
            Unavailable: its module is still being imported.
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
                    f"logits_processors: {call.qualname[:100]} cannot be made ({type(error).__name__}: "
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
        """Has the module imported beside the loop that serves everybody."""
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
    except ValueError:  # told when it is looked at
        return
