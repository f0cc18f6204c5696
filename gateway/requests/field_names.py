"""Renames fields in errors, so that clients see the names of the fields they sent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from quire.errors import QuireError


@contextlib.contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Renames fields in the parameter and message of errors raised inside the context.

    Args:
        names: internal name → the client's name.
    """
    try:
        yield
    except QuireError as error:
        if name := names.get(error.parameter):
            # A name that is also an English word means the field only at the start of the message.
            anywhere = "_" in error.parameter
            pattern = rf"\b{re.escape(error.parameter)}\b" if anywhere else rf"\A{re.escape(error.parameter)}\b"
            error.message, error.parameter = re.sub(pattern, name, error.message), name
        raise
