"""Registry of structured-output backends, with how to install them."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from quire.errors import FailedPrecondition, InvalidRequest
from quire.options.structured_outputs import REFUSED_BACKENDS
from quire.structured.base import Backend
from quire.structured.vocabulary import Vocabulary


@dataclass(frozen=True)
class BackendEntry:
    """Location of a backend."""

    place: str  # module:class, imported when it is first used
    module: str  # that it requires
    package: str  # which provides that module, as pip names it


BACKENDS: dict[str, BackendEntry] = {
    "guidance": BackendEntry("quire.structured.guidance:GuidanceBackend", "llguidance", "llguidance"),
    "xgrammar": BackendEntry("quire.structured.xgrammar:XGrammarBackend", "xgrammar", "quire[xgrammar]"),
    "outlines": BackendEntry("quire.structured.outlines:OutlinesBackend", "outlines_core", "quire[outlines]"),
}


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """Creates a backend for a vocabulary.

    Raises:
        InvalidRequest: there is no backend of that name.
        FailedPrecondition: it is not installed; the message says how to install it.
    """
    check_installed(name)
    module, _, attribute = BACKENDS[name].place.partition(":")
    made: Any = getattr(importlib.import_module(module), attribute)(vocabulary)
    backend: Backend = made
    return backend


def is_installed(name: str) -> bool:
    """Whether the module that the backend requires is installed."""
    return importlib.util.find_spec(BACKENDS[name].module) is not None


def check_installed(name: str) -> None:
    """Checks that a backend exists and is installed.

    Raises:
        InvalidRequest: there is no backend of that name.
        FailedPrecondition: it is not installed; the message says how to install it.
    """
    check_backend(name)
    if not is_installed(name):
        raise FailedPrecondition(
            f"The structured output backend {name} is not installed: run `pip install {BACKENDS[name].package}`, or "
            "choose another.",
            parameter="backend",
        )


def check_backend(name: str) -> None:
    """Checks that a backend with this name exists.

    Raises:
        InvalidRequest: there is no backend of that name.
    """
    if name in REFUSED_BACKENDS:
        raise InvalidRequest(
            f"Quire does not support the structured output backend {name}. {REFUSED_BACKENDS[name]} Choose one of "
            f"{', '.join(BACKENDS)}.",
            parameter="backend",
        )
    if name not in BACKENDS:
        raise InvalidRequest(
            f"The structured output backend {name[:64]!r} does not exist; choose one of {', '.join(BACKENDS)}.",
            parameter="backend",
        )
