"""Optional packages that only some options need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from quire.errors import StartupError


@contextlib.contextmanager
def needed(option: str, package: str, extra: str) -> Iterator[None]:
    """Wraps the import of an optional package.

    Args:
        option: the option that needs it, as the user gave it.
        extra: the extra of Quire that installs it.

    Raises:
        StartupError: it cannot be imported; the message says how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise StartupError(
            f"{option} needs the package {package}, which cannot be imported ({error}). Install it: "
            f"pip install 'quire[{extra}]'."
        ) from error
