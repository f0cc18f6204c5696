"""Documents that a message has beside its text: they become part of it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quire.errors import InvalidRequest

_HEAD = re.compile(r"data:([^;,]{0,100})(;[^;,]{0,100})*;base64,")


def document_text(text: str, title: str = "", context: str = "") -> str:
    """Returns a document as the model reads it."""
    head = f'<document title="{title}">' if title else "<document>"
    return "\n".join([head, *([context] if context else []), text, "</document>", ""])


def file_text(data: str, place: str, parameter: str) -> str:
    """Returns the text of a file.

    Args:
        data: the file in base64, also as a data: URL.
        place: where the file is in the request, for error messages.

    Raises:
        InvalidRequest: it is not base64, or not a text in UTF-8.
    """
    head = _HEAD.match(data)
    kind = head[1] if head and head[1] else "another type"
    try:
        text = base64.b64decode(data[head.end() :] if head else data, validate=True)
    except ValueError as error:
        raise InvalidRequest(f"{place} is not valid base64 ({error}).", parameter=parameter) from None
    with suppress(UnicodeDecodeError):
        if b"\0" not in text:
            return text.decode()
    raise InvalidRequest(
        f"{place} is a file of {kind[:100]}, but only texts in UTF-8 can be read: send its text instead, or its pages "
        "as images.", parameter=parameter,
    )  # fmt: skip


def file_document(file: Any, place: str, parameter: str) -> str:
    """Returns a file, which comes as `file_data` and, optionally, `filename`, as the model reads it.

    Raises:
        InvalidRequest: it has no `file_data`, or that is not a text in base64.
    """
    data, name = (file.get("file_data"), file.get("filename")) if isinstance(file, Mapping) else (None, None)
    if not isinstance(data, str):
        raise InvalidRequest(
            f"{place} has no file_data: Quire neither stores nor fetches files; send a text file in base64 as "
            "file_data.", parameter=parameter,
        )  # fmt: skip
    return document_text(file_text(data, f"{place}.file_data", parameter), str(name or ""))
