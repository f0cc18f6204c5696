"""Context that travels with a request beside its message: its id and its trace."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextvars import ContextVar

REQUEST_ID_HEADER = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_request_id: ContextVar[str] = ContextVar("request_id", default="")
# W3C headers that identify a trace and the span in it.
Trace = tuple[tuple[str, str], ...]
_trace: ContextVar[Trace] = ContextVar("trace", default=())
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACESTATE = 512


def is_request_id(candidate: str) -> bool:
    """Whether it is well-formed: 1 to 128 characters of A-Z a-z 0-9 . _ -"""
    return _REQUEST_ID.fullmatch(candidate) is not None


def accept_request_id(candidate: str | None) -> str:
    """The caller's id if it is well-formed, else a new one (32 hexadecimal digits)."""
    return candidate if candidate and is_request_id(candidate) else uuid.uuid4().hex


def current_request_id() -> str:
    """Id of the request that this task works on; empty outside of one."""
    return _request_id.get()


def read_trace(headers: Mapping[str, str]) -> Trace:
    """The trace identified by the headers; empty if they are malformed."""
    parent, state = (headers.get(name, "") for name in TRACE_HEADERS)
    if not _TRACEPARENT.fullmatch(parent):
        return ()
    is_sound = state and len(state) <= _MAX_TRACESTATE and state.isascii() and state.isprintable()
    return (("traceparent", parent), *((("tracestate", state),) if is_sound else ()))


def current_trace() -> Trace:
    """The trace of the request that this task works on; empty outside of one."""
    return _trace.get()


def enter_request(request_id: str, trace: Trace) -> None:
    """Makes the request the current one of this task and of the tasks it starts."""
    _request_id.set(request_id)
    _trace.set(trace)


def outgoing_metadata() -> tuple[tuple[str, str], ...]:
    """Metadata that passes the current request's id and trace on to the next service."""
    request_id = _request_id.get()
    return (*(((REQUEST_ID_HEADER, request_id),) if request_id else ()), *_trace.get())
