"""From a request's body to a struct, or to an error that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from gateway.context import context_of
from gateway.endpoints.large import beside
from gateway.errors import HttpError
from quire.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

MAX_BRACKETS = 200_000
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
# Half of a surrogate pair: the first one without a second behind it, or a second one without a first before it.
_FIRST, _SECOND = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_FIRST, _SECOND, _FIRST, _SECOND))
# Strings, which stay, or a whole number that is written as a fraction.
_WHOLE_NUMBER = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|(?<![\d.eE+])(-?\d+)\.0+(?![\d.eE])')


async def read_json(request: Request, kind: type[T]) -> T:
    """The body as `kind`; raises as `read_content` and `parse` do."""
    return await parse(request, await read_content(request), kind)


async def read_content(request: Request) -> bytes:
    """The body, which is to be JSON.

    Raises:
        HttpError: it is not said to be JSON, is compressed, or is too large.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(400, "Unsupported Media Type: Only 'application/json' is allowed")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "Compressed request bodies are not accepted; send the JSON as it is.")
    return await _read_body(request, context_of(request).options.max_body_bytes)


async def parse(request: Request, content: bytes, kind: type[T]) -> T:
    """The request's body as `kind`.

    Raises:
        InvalidRequest: it is not valid JSON, or a field is missing or of another type.
    """
    body = await beside(request, decode_json, content, kind)
    context_of(request).unknown_fields.look(content, kind)
    return body


async def _read_body(request: Request, limit: int) -> bytes:
    """Stops at the limit, whatever the headers say of the length. (Starlette's own limit answers in plain text.)"""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise HttpError(413, f"The request's body is larger than {limit} bytes (--max-body-bytes).")
        chunks.append(chunk)
    return b"".join(chunks)


def decode_json(body: bytes, kind: type[T]) -> T:
    """The JSON text as `kind`. Where a key stands twice, the last one counts."""
    # Hundreds of thousands of small objects take long, and nothing else is done meanwhile.
    if (brackets := body.count(b"{") + body.count(b"[")) > MAX_BRACKETS:
        raise InvalidRequest(f"The body has {brackets} opening brackets; at most {MAX_BRACKETS} are allowed.")
    try:
        return _decode(body, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        field = path[1] if path else ""
        raise InvalidRequest(
            f"{field + ': ' if field else ''}{_PATH.sub('', text)[:500]}", parameter=field[:200]
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if lone := _LONE_SURROGATE.search(body):
            raise InvalidRequest(
                f"The body has {lone[0].decode()} alone, half of a character: send both surrogates, or U+FFFD."
            ) from None
        raise InvalidRequest(f"The body is not valid JSON: {str(error)[:300]}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None


def _decode(body: bytes, kind: type[T]) -> T:
    """Takes 1.0 where 1 is wanted, as clients write whose numbers are all fractions; others do not pay for it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        whole = _WHOLE_NUMBER.sub(lambda found: found[1] or found[0], body)
        if whole == body:
            raise
        return msgspec.json.decode(whole, type=kind)
