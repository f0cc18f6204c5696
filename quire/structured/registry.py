"""Which backends there are, and how to get those that are not installed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from quire.errors import FailedPrecondition, InvalidRequest
from quire.structured.base import Backend
from quire.structured.vocabulary import Vocabulary


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is."""

    place: str  # module:class, imported when it is first used
    package: str  # that it needs, by pip's name


BACKENDS: dict[str, BackendEntry] = {
    "guidance": BackendEntry("quire.structured.guidance:GuidanceBackend", "llguidance"),
}


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """
    Raises:
        InvalidRequest: there is no backend of that name.
        FailedPrecondition: it is not installed; says how to.
    """
    check_backend(name)
    module, _, attribute = BACKENDS[name].place.partition(":")
    try:
        made: Any = getattr(importlib.import_module(module), attribute)(vocabulary)
    except ImportError as error:
        package = BACKENDS[name].package
        raise FailedPrecondition(
            f"The structured output backend {name} is not installed here: `pip install {package}`, or choose another "
            f"({error}).",
            parameter="backend",
        ) from error
    backend: Backend = made
    return backend


def check_backend(name: str) -> None:
    """
    Raises:
        InvalidRequest: there is no backend of that name.
    """
    if name not in BACKENDS:
        raise InvalidRequest(
            f"The structured output backend {name[:64]!r} does not exist; choose one of {', '.join(BACKENDS)}.",
            parameter="backend",
        )
