"""Decodes a request's body to a struct; errors name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from gateway.context import context_of
from gateway.endpoints.large import beside
from gateway.errors import HttpError
from gateway.requests.wrong_field import wrong_field
from quire.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

MAX_BRACKETS = 200_000
# Half of a surrogate pair: a first one without a second one after it, or a second one without a first one before it.
_FIRST, _SECOND = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_FIRST, _SECOND, _FIRST, _SECOND))
# Matches strings, which are left alone, or a whole number written as a fraction.
_WHOLE_NUMBER = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|(?<![\d.eE+])(-?\d+)\.0+(?![\d.eE])')


async def read_json(request: Request, kind: type[T]) -> T:
    """Reads the body as `kind`; raises as `read_content` and `parse`."""
    return await parse(request, await read_content(request), kind)


async def read_content(request: Request) -> bytes:
    """Reads the body, which must be JSON by its content type.

    Raises:
        HttpError: its content type is not JSON, it is compressed, or it is too large.
    """
    limit = context_of(request).max_body_bytes
    too_large = f"The request's body is larger than {limit} bytes (--max-body-bytes)."
    return await read_body(request, "application/json", limit, too_large)


async def read_body(request: Request, media_type: str, limit: int, too_large: str) -> bytes:
    """Reads the body up to the limit, whatever Content-Length says. (Starlette's own limit answers in plain text.)

    Args:
        too_large: what to answer above the limit.

    Raises:
        HttpError: its content type is another one, it is compressed, it is too large, or it broke off.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise HttpError(400, f"Unsupported Media Type: Only '{media_type}' is allowed")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "Compressed request bodies are not accepted; send it uncompressed.")
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise HttpError(413, too_large)
            chunks.append(chunk)
    except ClientDisconnect:
        # Nobody reads this answer, but the request counts as the client's error.
        raise HttpError(400, "The connection ended before the body did.") from None
    return b"".join(chunks)


async def parse(request: Request, content: bytes, kind: type[T]) -> T:
    """Decodes the request's body as `kind`.

    Raises:
        InvalidRequest: it is not valid JSON, or a field is missing or of the wrong type.
    """
    body = await beside(request, decode_json, content, kind)
    context_of(request).unknown_fields.look(content, kind)
    return body


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decodes JSON text as `kind`. If a key occurs twice, the last one counts."""
    # Hundreds of thousands of small objects take long to decode, and block everything else meanwhile.
    if (brackets := body.count(b"{") + body.count(b"[")) > MAX_BRACKETS:
        raise InvalidRequest(f"The body has {brackets} opening brackets; at most {MAX_BRACKETS} are allowed.")
    try:
        return _decode(body, kind)
    except msgspec.ValidationError as error:
        raise wrong_field(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if lone := _LONE_SURROGATE.search(body):
            raise InvalidRequest(
                f"The body has the unpaired surrogate {lone[0].decode()}: send both surrogates, or U+FFFD."
            ) from None
        raise InvalidRequest(f"The body is not valid JSON: {str(error)[:300]}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None


def _decode(body: bytes, kind: type[T]) -> T:
    """Accepts 1.0 for 1, as clients send whose numbers are all floats; other requests pay nothing for that."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        whole = _WHOLE_NUMBER.sub(lambda found: found[1] or found[0], body)
        if whole == body:
            raise
        return msgspec.json.decode(whole, type=kind)
