"""What a router tells of a request in its trace."""

from __future__ import annotations

from quire.tracing.attributes import ATTEMPTS, OUTCOME, TIME_IN_QUEUE, WORKER
from quire.tracing.base import Span
from router.requests.sessions import Stream

SPAN_NAME = "route"


def end_span(span: Span, stream: Stream, outcome: str) -> None:
    """The request leaves the router, where it is, and as the metrics call it."""
    worker = stream.worker.address if stream.worker is not None else ""
    span.set({OUTCOME: outcome, WORKER: worker, ATTEMPTS: stream.attempts, TIME_IN_QUEUE: stream.waited})
    span.end("" if outcome in ("finished", "aborted") else outcome)
