"""Custom logits processors of the operator, loaded when a worker starts."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import StartupError
from quire.logits_processor import LogitsProcessor, load_class


def load_processors(names: Sequence[str]) -> list[type[LogitsProcessor]]:
    """The classes of `--logits-processors`.

    Raises:
        StartupError: a class does not exist or is not a logits processor; says why.
    """
    return [_load(name) for name in names]


def _load(name: str) -> type[LogitsProcessor]:
    try:
        return load_class(name)
    except ValueError as error:
        raise StartupError(f"--logits-processors {name}: {error}.") from error
