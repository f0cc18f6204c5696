"""Errors tell clients of the fields that they sent, whatever these are called further in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from quire.errors import QuireError


@contextlib.contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name a field as its client does, in the parameter and in the message.

    Args:
        names: further in → for the client.
    """
    try:
        yield
    except QuireError as error:
        if name := names.get(error.parameter):
            # What is a word of English too stands for the field at the beginning alone.
            anywhere = "_" in error.parameter
            pattern = rf"\b{re.escape(error.parameter)}\b" if anywhere else rf"\A{re.escape(error.parameter)}\b"
            error.message, error.parameter = re.sub(pattern, name, error.message), name
        raise
