"""Maps errors to and from gRPC and HTTP. Separate from `errors`, because grpc is slow to import."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from quire.errors import (
    Cancelled,
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    QuireError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)

CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class Mapping:
    """How one class of error is represented in gRPC and HTTP."""

    grpc_code: grpc.StatusCode
    http_status: int
    http_type: str


# The most specific class wins: lookups walk the class's ancestors.
TABLE: dict[type[QuireError], Mapping] = {
    InvalidRequest: Mapping(grpc.StatusCode.INVALID_ARGUMENT, 400, "BadRequestError"),
    Unauthenticated: Mapping(grpc.StatusCode.UNAUTHENTICATED, 401, "AuthenticationError"),
    NotFound: Mapping(grpc.StatusCode.NOT_FOUND, 404, "NotFoundError"),
    Conflict: Mapping(grpc.StatusCode.ABORTED, 409, "ConflictError"),
    FailedPrecondition: Mapping(grpc.StatusCode.FAILED_PRECONDITION, 400, "BadRequestError"),
    Overloaded: Mapping(grpc.StatusCode.RESOURCE_EXHAUSTED, 503, "ServiceUnavailableError"),
    RateLimited: Mapping(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "RateLimitError"),
    Unavailable: Mapping(grpc.StatusCode.UNAVAILABLE, 503, "ServiceUnavailableError"),
    DeadlineExceeded: Mapping(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "TimeoutError"),
    Cancelled: Mapping(grpc.StatusCode.CANCELLED, 499, "CancelledError"),
    Internal: Mapping(grpc.StatusCode.INTERNAL, 500, "InternalServerError"),
}

_CLASS_BY_CODE: dict[grpc.StatusCode, type[QuireError]] = {
    mapping.grpc_code: cls for cls, mapping in TABLE.items() if cls.__base__ is QuireError
}
# Those that share their code with their base class.
_CLASS_BY_REASON: dict[str, type[QuireError]] = {cls.reason: cls for cls in (ContextTooLong, RateLimited)}


def mapping_of(error: QuireError) -> Mapping:
    """How `error` is represented in gRPC and HTTP."""
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def from_status(
    code: grpc.StatusCode, message: str, *, reason: str = "", parameter: str = "", retry_after_seconds: float = 0.0
) -> QuireError:
    """The error that a gRPC status stands for; codes that Quire never sends become Internal.

    Args:
        retry_after_seconds: see `Overloaded`; 0 if the status does not say.
    """
    cls = _CLASS_BY_REASON.get(reason) or _CLASS_BY_CODE.get(code, Internal)
    error = cls(message, parameter=parameter, reason=reason)
    if isinstance(error, Overloaded) and retry_after_seconds:
        error.retry_after_seconds = retry_after_seconds
    return error
