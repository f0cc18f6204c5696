"""What travels with a request beside its message: its id and the trace it belongs to."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

REQUEST_ID_HEADER = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_request_id: ContextVar[str] = ContextVar("request_id", default="")
_trace: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("trace", default=())


def is_request_id(candidate: str) -> bool:
    """Whether it is well-formed: 1 to 128 of A-Z a-z 0-9 . _ -"""
    return _REQUEST_ID.fullmatch(candidate) is not None


def accept_request_id(candidate: str | None) -> str:
    """The caller's id if it is well-formed, else a new one (32 hexadecimal digits)."""
    return candidate if candidate and is_request_id(candidate) else uuid.uuid4().hex


def current_request_id() -> str:
    """Id of the request that this task works for; empty outside of one."""
    return _request_id.get()


def enter_request(request_id: str, trace: tuple[tuple[str, str], ...]) -> None:
    """Makes the request the current one of this task and the tasks it starts."""
    _request_id.set(request_id)
    _trace.set(trace)


def outgoing_metadata() -> tuple[tuple[str, str], ...]:
    """Metadata that hands the current request's id and trace on to the next service."""
    request_id = _request_id.get()
    return (*(((REQUEST_ID_HEADER, request_id),) if request_id else ()), *_trace.get())
