"""The errors that reach a caller, and the two tables that say how.

QuireError
├── InvalidRequest        the request is wrong; names the parameter and the fix
│   └── ContextTooLong    prompt, or prompt and max_tokens, exceed the model's length
├── Unauthenticated       no or wrong credentials
├── NotFound              no such model, worker or lease
├── FailedPrecondition    right request, wrong server: no chat template, feature not switched on
├── Overloaded            a bounded queue is full; try again later
├── Unavailable           not ready, draining, or the peer is gone
├── DeadlineExceeded      the request's own time ran out
├── Cancelled             the caller went away
└── Internal              our fault; details are in the log, not in the message

StartupError (what stops a process before it serves; its text is all the user sees)
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


# Reasons that are told apart from others of their class: stable names, which cross the wire. Most errors have their
# class's.
LOADING = "LOADING"  # Unavailable: the worker is not ready yet
DRAINING = "DRAINING"  # Unavailable: it takes nothing more
WORKER_LOST = "WORKER_LOST"  # Unavailable: the workers that ran the request are gone
ENGINE_FAULT = "ENGINE_FAULT"  # Internal, Unavailable: the engine failed, and another may not
REQUEST_FAULT = "REQUEST_FAULT"  # Internal: the request's own; it would fail on another worker too
QUEUE_FULL = "QUEUE_FULL"  # Overloaded: too many wait
QUEUE_TIMEOUT = "QUEUE_TIMEOUT"  # Overloaded: it has waited for too long
MODEL_NOT_FOUND = "MODEL_NOT_FOUND"  # NotFound


class QuireError(Exception):
    """An error with a stable reason, a message for the caller and, where one is at fault, a parameter."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, parameter: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.reason = reason or type(self).reason


class InvalidRequest(QuireError):
    reason = "INVALID_REQUEST"


class ContextTooLong(InvalidRequest):
    reason = "CONTEXT_LENGTH_EXCEEDED"


class Unauthenticated(QuireError):
    reason = "UNAUTHENTICATED"


class NotFound(QuireError):
    reason = "NOT_FOUND"


class FailedPrecondition(QuireError):
    reason = "FAILED_PRECONDITION"


class Overloaded(QuireError):
    reason = "OVERLOADED"


class Unavailable(QuireError):
    reason = "UNAVAILABLE"


class DeadlineExceeded(QuireError):
    reason = "DEADLINE_EXCEEDED"


class Cancelled(QuireError):
    reason = "CANCELLED"


class Internal(QuireError):
    reason = "INTERNAL"


class StartupError(Exception):
    """A process cannot start; the text says what is wrong and what to do."""


@dataclass(frozen=True)
class Mapping:
    """How one class of error looks on the two wires."""

    grpc_code: grpc.StatusCode
    http_status: int
    http_type: str


# The most specific class wins: lookups walk the class's ancestors.
TABLE: dict[type[QuireError], Mapping] = {
    InvalidRequest: Mapping(grpc.StatusCode.INVALID_ARGUMENT, 400, "BadRequestError"),
    Unauthenticated: Mapping(grpc.StatusCode.UNAUTHENTICATED, 401, "AuthenticationError"),
    NotFound: Mapping(grpc.StatusCode.NOT_FOUND, 404, "NotFoundError"),
    FailedPrecondition: Mapping(grpc.StatusCode.FAILED_PRECONDITION, 400, "BadRequestError"),
    Overloaded: Mapping(grpc.StatusCode.RESOURCE_EXHAUSTED, 503, "ServiceUnavailableError"),
    Unavailable: Mapping(grpc.StatusCode.UNAVAILABLE, 503, "ServiceUnavailableError"),
    DeadlineExceeded: Mapping(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "TimeoutError"),
    Cancelled: Mapping(grpc.StatusCode.CANCELLED, 499, "CancelledError"),
    Internal: Mapping(grpc.StatusCode.INTERNAL, 500, "InternalServerError"),
}

_CLASS_BY_CODE: dict[grpc.StatusCode, type[QuireError]] = {m.grpc_code: cls for cls, m in TABLE.items()}


def mapping_of(error: QuireError) -> Mapping:
    """How `error` looks in gRPC and HTTP."""
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def from_status(code: grpc.StatusCode, message: str, *, reason: str = "", parameter: str = "") -> QuireError:
    """The error that a gRPC status stands for; codes that Quire never sends become Internal."""
    if reason == ContextTooLong.reason:
        return ContextTooLong(message, parameter=parameter)
    return _CLASS_BY_CODE.get(code, Internal)(message, parameter=parameter, reason=reason)
