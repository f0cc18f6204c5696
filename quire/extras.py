"""Packages that only some options need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from quire.errors import StartupError


@contextlib.contextmanager
def needed(option: str, package: str, extra: str) -> Iterator[None]:
    """Around what imports the package.

    Args:
        option: that needs it, as the user gave it.
        extra: of Quire, that brings it.

    Raises:
        StartupError: it cannot be imported; says how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise StartupError(
            f"{option} needs the package {package}, which cannot be imported ({error}). Install it: "
            f"pip install 'quire[{extra}]'."
        ) from error
