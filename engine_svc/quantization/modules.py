"""Lists of modules in checkpoints' configurations: names, patterns of names, and names of classes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_svc.quantization.base import Place, PlaceKind
from quire.errors import StartupError

_EXPRESSION = "re:"
# The class names of modules in checkpoints. Routers have none: in most families a router is a bare parameter, which
# quantizers need not exclude, and other routers are not quantized either.
_CLASSES: Mapping[PlaceKind, str] = {
    "linear": "Linear",
    "experts": "Linear",
    "head": "Linear",
    "embedding": "Embedding",
}


@dataclass(frozen=True)
class Modules:
    """The modules that a list refers to."""

    names: frozenset[str]  # without dots around them; checkpoints of large models list tens of thousands
    patterns: Sequence[re.Pattern[str]]

    def have(self, place: Place) -> bool:
        """Whether the list has the matrix's name, a matching pattern, or a module that contains it."""
        return place.is_in(self.names) or any(pattern.match(name) for pattern in self.patterns for name in place.names)

    def have_class_of(self, place: Place) -> bool:
        """Whether the list has the matrix's class."""
        return _CLASSES.get(place.kind) in self.names


def modules(listed: Sequence[str]) -> Modules:
    """Parses a list.

    Args:
        listed: names, which may contain stars; or `re:` and a regular expression that matches the beginning of a name.

    Raises:
        StartupError: a regular expression is invalid.
    """
    patterns = [_expression(each) for each in listed if each.startswith(_EXPRESSION) or "*" in each]
    names = (each.strip(".") for each in listed if not each.startswith(_EXPRESSION) and "*" not in each)
    return Modules(frozenset(names), patterns)


def _expression(pattern: str) -> re.Pattern[str]:
    if not pattern.startswith(_EXPRESSION):
        return re.compile(fnmatch.translate(pattern))
    try:
        return re.compile(pattern.removeprefix(_EXPRESSION))
    except re.error as error:
        raise StartupError(f"quantization_config: {pattern!r} is not a valid pattern for modules: {error}.") from error
