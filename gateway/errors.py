"""Errors in OpenAI's shape."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import ContextTooLong, Overloaded, QuireError, Unavailable, mapping_of

# Retrying sooner would meet the same queue.
_RETRY_AFTER_SECONDS = "1"
_MAX_MESSAGE = 2000


class HttpError(Exception):
    """A failure of HTTP itself, which no QuireError stands for, such as an unsupported media type."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ErrorBody(msgspec.Struct):
    """What is wrong: in words, by kind, in which parameter, and as a code."""

    message: str
    type: str
    param: str | None
    code: int | str


class ErrorResponse(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorBody


def error_body(error: QuireError) -> ErrorResponse:
    """The body that an error is answered with, whole or inside a stream."""
    mapping = mapping_of(error)
    code: int | str = "context_length_exceeded" if isinstance(error, ContextTooLong) else mapping.http_status
    return ErrorResponse(ErrorBody(error.message[:_MAX_MESSAGE], mapping.http_type, error.parameter or None, code))


def error_response(error: QuireError) -> Response:
    """The answer to a request that failed."""
    headers = {"retry-after": _RETRY_AFTER_SECONDS} if isinstance(error, Overloaded | Unavailable) else {}
    return json_response(error_body(error), mapping_of(error).http_status, headers)


def stopping() -> Unavailable:
    """What a request that is cut gets, whole or inside its stream."""
    return Unavailable("The server is stopping and did not finish this request; send it again.")


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The answer that holds a value."""
    return json_text_response(json_bytes(content), status, headers)


def json_bytes(content: Any) -> bytes:
    """Any value that msgspec encodes, as JSON."""
    return msgspec.json.encode(content)


def json_text_response(text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """What is JSON already."""
    return Response(text, status, headers, media_type="application/json")


def plain_error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error of HTTP itself, such as 404 or 413, in the same shape."""
    kind = HTTPStatus(status).phrase
    return json_response(ErrorResponse(ErrorBody(message[:_MAX_MESSAGE], kind, None, status)), status, headers)


async def handle_quire_error(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    if not isinstance(error, QuireError):
        raise error
    return error_response(error)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for HttpError."""
    if not isinstance(error, HttpError):
        raise error
    return plain_error(error.status, str(error))


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what Starlette raises: 404, 405, 413."""
    if not isinstance(error, HTTPException):
        raise error
    messages = {
        404: f"There is no {request.url.path[:200]} here; /docs lists what there is.",
        405: f"{request.method} is not allowed on {request.url.path[:200]}.",
    }
    return plain_error(error.status_code, messages.get(error.status_code, error.detail), dict(error.headers or {}))


async def handle_unexpected(request: Request, error: Exception) -> Response:
    """A bug of ours: the log has it, the client gets no details."""
    return plain_error(500, "Internal error; the gateway's log has the details.")
