"""The operator's own logits processors, loaded when a worker starts."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import StartupError
from quire.logits_processor import LogitsProcessor, load_class


def load_processors(names: Sequence[str]) -> list[type[LogitsProcessor]]:
    """The classes of `--logits-processors`.

    Raises:
        StartupError: there is no such class, or it is no processor; says why.
    """
    return [_load(name) for name in names]


def _load(name: str) -> type[LogitsProcessor]:
    try:
        return load_class(name)
    except ValueError as error:
        raise StartupError(f"--logits-processors {name}: {error}.") from error
