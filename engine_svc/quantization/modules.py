"""Lists of modules, as checkpoints' configurations have them: names, patterns of names, and names of classes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_svc.quantization.base import Place, PlaceKind
from quire.errors import StartupError

_EXPRESSION = "re:"
# What checkpoints call the classes of modules. Routers are of none: most families have a bare parameter there, which
# those who quantize need not leave out, and nobody quantizes the others.
_CLASSES: Mapping[PlaceKind, str] = {
    "linear": "Linear",
    "experts": "Linear",
    "head": "Linear",
    "embedding": "Embedding",
}


@dataclass(frozen=True)
class Modules:
    """Those that a list means."""

    names: Sequence[str]
    patterns: Sequence[re.Pattern[str]]

    def have(self, place: Place) -> bool:
        """Whether the list has a matrix's name, or a pattern of it, or a module that it is in."""
        return place.is_any_of(self.names) or any(
            pattern.match(name) for pattern in self.patterns for name in place.names
        )

    def have_class_of(self, place: Place) -> bool:
        """Whether the list has the matrix's class."""
        return _CLASSES.get(place.kind) in self.names


def modules(listed: Sequence[str]) -> Modules:
    """
    Args:
        listed: with `re:` before a regular expression that a name begins with; other names may have stars.

    Raises:
        StartupError: an expression is none.
    """
    patterns = [_expression(each) for each in listed if each.startswith(_EXPRESSION) or "*" in each]
    return Modules([each for each in listed if not each.startswith(_EXPRESSION) and "*" not in each], patterns)


def _expression(pattern: str) -> re.Pattern[str]:
    if not pattern.startswith(_EXPRESSION):
        return re.compile(fnmatch.translate(pattern))
    try:
        return re.compile(pattern.removeprefix(_EXPRESSION))
    except re.error as error:
        raise StartupError(f"quantization_config: {pattern!r} is no pattern of modules: {error}.") from error
