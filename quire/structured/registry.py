"""Which backends there are, and how to get those that are not installed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from quire.errors import FailedPrecondition, InvalidRequest
from quire.structured.base import Backend
from quire.structured.vocabulary import Vocabulary


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is."""

    place: str  # module:class, imported when it is first used
    module: str  # that it needs
    package: str  # which has that, as pip takes it


BACKENDS: dict[str, BackendEntry] = {
    "guidance": BackendEntry("quire.structured.guidance:GuidanceBackend", "llguidance", "llguidance"),
    "xgrammar": BackendEntry("quire.structured.xgrammar:XGrammarBackend", "xgrammar", "quire[xgrammar]"),
    "outlines": BackendEntry("quire.structured.outlines:OutlinesBackend", "outlines_core", "quire[outlines]"),
}
# Names that other servers know, and why there is nothing behind them.
REFUSED: dict[str, str] = {
    "lm-format-enforcer": "it works through the vocabulary in Python at each token, which would hold up every other "
    "stream of its engine, and where it meets an error of its own it lets the output end, valid or not",
}


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """
    Raises:
        InvalidRequest: there is no backend of that name.
        FailedPrecondition: it is not installed; says how to.
    """
    check_installed(name)
    module, _, attribute = BACKENDS[name].place.partition(":")
    made: Any = getattr(importlib.import_module(module), attribute)(vocabulary)
    backend: Backend = made
    return backend


def is_installed(name: str) -> bool:
    """Whether what the backend needs is here."""
    return importlib.util.find_spec(BACKENDS[name].module) is not None


def check_installed(name: str) -> None:
    """
    Raises:
        InvalidRequest: there is no backend of that name.
        FailedPrecondition: it is not installed; says how to.
    """
    check_backend(name)
    if not is_installed(name):
        raise FailedPrecondition(
            f"The structured output backend {name} is not installed here: `pip install {BACKENDS[name].package}`, or "
            "choose another.",
            parameter="backend",
        )


def check_backend(name: str) -> None:
    """
    Raises:
        InvalidRequest: there is no backend of that name.
    """
    if name in REFUSED:
        raise InvalidRequest(
            f"Quire does not follow constraints by {name}: {REFUSED[name]}. Choose one of {', '.join(BACKENDS)}.",
            parameter="backend",
        )
    if name not in BACKENDS:
        raise InvalidRequest(
            f"The structured output backend {name[:64]!r} does not exist; choose one of {', '.join(BACKENDS)}.",
            parameter="backend",
        )
