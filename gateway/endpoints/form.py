"""Reads a request's form; errors name the field."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from gateway.endpoints.body import read_body
from gateway.endpoints.large import beside
from gateway.requests.form import Part, parse_form
from quire.media import MAX_FILE_BYTES, MediaKind

_FIELDS_MIB = 1  # for all fields but the file
_FILE_MIB = MAX_FILE_BYTES[MediaKind.AUDIO] // 2**20
_MAX_BYTES = (_FILE_MIB + _FIELDS_MIB) * 2**20


def form_bytes(request: Request) -> int:
    """Returns how large the request's form may be: as announced, or as large as forms may be."""
    length = request.headers.get("content-length", "")
    return min(int(length), _MAX_BYTES) if length.isdigit() else _MAX_BYTES


async def read_form(request: Request) -> Sequence[Part]:
    """Reads a form with an audio file.

    Raises:
        HttpError: the body is of another type, compressed, or too large.
        InvalidRequest: the form is malformed.
        Overloaded: too many large requests are in progress.
    """
    too_large = (
        f"Maximum file size exceeded: a form may have {_FILE_MIB} MiB for the file, and {_FIELDS_MIB} MiB for the "
        "rest. Send a shorter or a compressed recording."
    )
    content = await read_body(request, "multipart/form-data", _MAX_BYTES, too_large)
    return await beside(request, parse_form, content, request.headers["content-type"])
