"""Renames fields in errors, so that clients see the names of the fields they sent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from quire.errors import QuireError

_PLACE = r"\b(?:\.\w+|\[\d+\])*"


@contextlib.contextmanager
def told_as(names: Mapping[str, str], *, keeps_places: bool = True) -> Iterator[None]:
    """Renames fields in the parameter and message of errors raised inside the context.

    Args:
        names: internal name → the client's name.
        keeps_places: whether places within a field are the client's, too, as in messages[0].content[1].
    """
    try:
        yield
    except QuireError as error:
        if name := names.get(error.parameter):
            # A name that is also an English word means the field only at the start of the message.
            anywhere = "_" in error.parameter
            start, end = r"\b" if anywhere else r"\A", r"\b" if keeps_places else _PLACE
            pattern = f"{start}{re.escape(error.parameter)}{end}"
            error.message, error.parameter = re.sub(pattern, name, error.message), name
        raise
