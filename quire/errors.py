"""The errors that reach a caller. How they look in gRPC and HTTP is in `quire.error_tables`.

QuireError
├── InvalidRequest        the request is wrong; names the parameter and the fix
│   └── ContextTooLong    prompt, or prompt and max_tokens, exceed the model's length
├── Unauthenticated       no or wrong credentials
├── NotFound              no such model, worker or lease
├── Conflict              right request, wrong moment: it is under way, or something else has to come first
├── FailedPrecondition    right request, wrong server: no chat template, feature not switched on
├── Overloaded            a bounded queue is full; try again later
│   └── RateLimited       a limit of the caller's own key is reached; says when to try again
├── Unavailable           not ready, draining, short of memory, or the peer is gone
├── DeadlineExceeded      the request's own time ran out
├── Cancelled             the caller went away
└── Internal              our fault; details are in the log, not in the message

StartupError (what stops a process before it serves; its text is all the user sees)
"""

from __future__ import annotations

# Reasons that differ from their class's: stable names, which cross the wire. Most errors have their class's reason.
LOADING = "LOADING"  # Unavailable: the worker is not ready yet
DRAINING = "DRAINING"  # Unavailable: it takes no new requests
PAUSED = "PAUSED"  # Unavailable: an operator has paused it, or put it to sleep
PREFILLED = "PREFILLED"  # Unavailable: the prompt's KV blocks are saved, and another worker continues
WORKER_LOST = "WORKER_LOST"  # Unavailable: the workers that ran the request are gone
ENGINE_FAULT = "ENGINE_FAULT"  # Internal, Unavailable: the engine failed, and another may not
REQUEST_FAULT = "REQUEST_FAULT"  # Internal: the request's own fault; it would fail on another worker too
QUEUE_FULL = "QUEUE_FULL"  # Overloaded: too many requests wait
QUEUE_TIMEOUT = "QUEUE_TIMEOUT"  # Overloaded: the request waited for too long
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


class Conflict(QuireError):
    reason = "CONFLICT"


class FailedPrecondition(QuireError):
    reason = "FAILED_PRECONDITION"


class Overloaded(QuireError):
    reason = "OVERLOADED"

    def __init__(
        self, message: str, *, parameter: str = "", reason: str = "", retry_after_seconds: float = 1.0
    ) -> None:
        """
        Args:
            retry_after_seconds: the time after which there may be room, as far as that is known.
        """
        super().__init__(message, parameter=parameter, reason=reason)
        self.retry_after_seconds = retry_after_seconds


class RateLimited(Overloaded):
    reason = "RATE_LIMITED"


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
