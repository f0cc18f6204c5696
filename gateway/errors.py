"""Error responses in OpenAI's format, and in Anthropic's and Cohere's for their APIs."""

from __future__ import annotations

import logging
import math
import random
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.middleware.root_path import path_below_root
from quire.error_tables import mapping_of
from quire.errors import Overloaded, QuireError, RateLimited, Unavailable
from quire.rpc.context import current_request_id

logger = logging.getLogger(__name__)

# A sooner retry would find the queue just as full.
_LEAST_RETRY_SECONDS = 1.0
_MAX_MESSAGE = 2000
_MESSAGES = b"/v1/messages"
_COHERE = b"/cohere/"
# Error types by status; statuses not listed are api_error.
_MESSAGES_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 415: "invalid_request_error", 429: "rate_limit_error",
    503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
_MESSAGES_OVERLOADED = 529  # Anthropic's status, for which its SDKs have a class
_NOT_IMPLEMENTED = 501


class HttpError(Exception):
    """A failure at the HTTP level that no QuireError covers, such as an unsupported media type."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ErrorBody(msgspec.Struct):
    """The error: its message, type, the parameter it concerns, and the HTTP status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(msgspec.Struct):
    """The body of every response that is not a success."""

    error: ErrorBody


class MessagesErrorBody(msgspec.Struct):
    """The error: its type and message."""

    type: str
    message: str


class MessagesError(msgspec.Struct):
    """An error in Anthropic's format, as a response body or as an event of a stream."""

    error: MessagesErrorBody
    request_id: str | None
    type: str = "error"


class CohereError(msgspec.Struct):
    """An error in Cohere's format."""

    message: str
    id: str | None


def error_body(error: QuireError) -> ErrorResponse:
    """Returns the OpenAI error body for an error, used as a response body or inside a stream."""
    mapping = mapping_of(error)
    return ErrorResponse(
        ErrorBody(error.message[:_MAX_MESSAGE], mapping.http_type, error.parameter or None, mapping.http_status)
    )


def messages_error(status: int, message: str) -> MessagesError:
    """Returns the Anthropic error body for an error."""
    body = MessagesErrorBody(_MESSAGES_TYPES.get(status, "api_error"), message[:_MAX_MESSAGE])
    return MessagesError(body, current_request_id() or None)


def is_for_messages(scope: Scope) -> bool:
    """Whether a request is for Anthropic's API."""
    path = path_below_root(scope).partition(b"?")[0]
    return path == _MESSAGES or path.startswith(_MESSAGES + b"/")


def _cohere_error(message: str, scope: Scope) -> CohereError | None:
    """Returns the Cohere error body for an error; None if the request is for another API."""
    if not path_below_root(scope).startswith(_COHERE):
        return None
    return CohereError(message[:_MAX_MESSAGE], current_request_id() or None)


def error_response(error: QuireError, scope: Scope) -> Response:
    """Returns the response to a request that failed."""
    headers = {"retry-after": str(_retry_after(error))} if isinstance(error, Overloaded | Unavailable) else {}
    status = mapping_of(error).http_status
    if is_for_messages(scope):
        is_overloaded = isinstance(error, Overloaded) and not isinstance(error, RateLimited)
        status = _MESSAGES_OVERLOADED if is_overloaded else status
        return json_response(messages_error(status, error.message), status, headers)
    return json_response(_cohere_error(error.message, scope) or error_body(error), status, headers)


def _retry_after(error: Overloaded | Unavailable) -> int:
    """Returns the whole seconds after which a retry makes sense. Clients that were refused together are told different
    times, up to twice as long, so that they do not return together; the limit of a key concerns only its owner."""
    seconds = max(_LEAST_RETRY_SECONDS, error.retry_after_seconds if isinstance(error, Overloaded) else 0.0)
    return math.ceil(seconds) if isinstance(error, RateLimited) else round(seconds * random.uniform(1.0, 2.0))  # noqa: S311


def stopping() -> Unavailable:
    """The error for a request that is cut off by shutdown, as a response or inside its stream."""
    return Unavailable("The server is stopping and did not finish this request; send it again.")


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with `content` encoded as JSON."""
    return json_text_response(json_bytes(content), status, headers)


def json_bytes(content: Any) -> bytes:
    """Encodes any value that msgspec supports as JSON."""
    return msgspec.json.encode(content)


def json_text_response(text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a response whose body is JSON already."""
    return Response(text, status, headers, media_type="application/json")


def plain_error(status: int, message: str, scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """Returns an HTTP-level error, such as 404 or 413, in the same format."""
    kind = "NotImplementedError" if status == _NOT_IMPLEMENTED else HTTPStatus(status).phrase
    plain = ErrorResponse(ErrorBody(message[:_MAX_MESSAGE], kind, None, status))
    body = _cohere_error(message, scope) or plain
    return json_response(messages_error(status, message) if is_for_messages(scope) else body, status, headers)


async def handle_quire_error(request: Request, error: Exception) -> Response:
    """Exception handler for QuireError."""
    if not isinstance(error, QuireError):
        raise error
    if request.app.state.context.options.log_error_stack:
        logger.error("a request failed", exc_info=error)
    return error_response(error, request.scope)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for HttpError."""
    if not isinstance(error, HttpError):
        raise error
    return plain_error(error.status, str(error), request.scope)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for the errors that Starlette raises: 404, 405, 413."""
    if not isinstance(error, HTTPException):
        raise error
    messages = {
        404: f"{request.url.path[:200]} does not exist; /docs lists all endpoints.",
        405: f"{request.method} is not allowed on {request.url.path[:200]}.",
    }
    message = messages.get(error.status_code, error.detail)
    return plain_error(error.status_code, message, request.scope, dict(error.headers or {}))


async def handle_unexpected(request: Request, error: Exception) -> Response:
    """Exception handler for bugs: details go to the log, not to the client."""
    return plain_error(500, "Internal error; the gateway's log has the details.", request.scope)
