"""Reads forms with files: bodies of the type multipart/form-data (RFC 7578)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import InvalidRequest

MAX_PARTS = 64
_MAX_HEAD_BYTES = 8 * 1024  # of a part's headers
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.ASCII | re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:[ \t]*form-data[ \t]*(;[^\r\n]*)$", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb';[ \t]*([\w*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')
_ESCAPED = re.compile(rb'\\(["\\])')


@dataclass(frozen=True)
class Part:
    """A field of a form, or a file."""

    name: str
    content: bytes
    is_file: bool = False


def parse_form(body: bytes, content_type: str) -> Sequence[Part]:
    """Splits a form into its parts, in their order.

    Args:
        content_type: the header, with the boundary between parts.

    Raises:
        InvalidRequest: the form is malformed, cut off, or has more than MAX_PARTS parts.
    """
    found = _BOUNDARY.search(content_type)
    if not found:
        raise InvalidRequest(
            "The header content-type has no boundary. Let the HTTP client set it, as in multipart/form-data; "
            "boundary=words-that-no-part-has."
        )
    mark = b"\r\n--" + (found[1] or found[2]).encode()
    # The standard library's parser of e-mails does the same by lines, which takes seconds for a file of 25 MiB.
    _, *pieces = (b"\r\n" + body).split(mark, MAX_PARTS + 1)
    parts: list[Part] = []
    for piece in pieces:
        if piece.startswith(b"--"):
            return parts
        if len(parts) == MAX_PARTS:
            raise InvalidRequest(f"The form has more than {MAX_PARTS} parts. Send fewer.")
        parts.append(_part(piece, len(parts)))
    raise InvalidRequest(
        f"The form is not complete: after part {len(parts)}, the boundary that ends it is missing. Send the whole form."
    )


def _part(piece: bytes, index: int) -> Part:
    """Parses what stands between two boundaries, from the end of the first one's line on."""
    head, blank, content = piece.partition(b"\r\n\r\n")
    disposition = _DISPOSITION.search(head.replace(b"\r\n", b"\n")) if len(head) <= _MAX_HEAD_BYTES else None
    if not blank or not disposition:
        raise _malformed(index)
    parameters = {
        name.lower(): _ESCAPED.sub(rb"\1", quoted) or plain
        for name, quoted, plain in _PARAMETER.findall(disposition[1])
    }
    if not parameters.get(b"name"):
        raise _malformed(index)
    try:
        name = parameters[b"name"].decode()
    except UnicodeDecodeError:
        raise _malformed(index) from None
    return Part(name, content, is_file=bool(parameters.keys() & {b"filename", b"filename*"}))


def _malformed(index: int) -> InvalidRequest:
    return InvalidRequest(
        f'Part {index} of the form has no header like content-disposition: form-data; name="file", in UTF-8 and with '
        "a blank line after it. Send forms as an HTTP client makes them."
    )
