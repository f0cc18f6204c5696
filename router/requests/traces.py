"""The router's span in a request's trace."""

from __future__ import annotations

from quire.tracing.attributes import ATTEMPTS, OUTCOME, TIME_IN_QUEUE, WORKER
from quire.tracing.base import Span
from router.requests.sessions import Stream

SPAN_NAME = "route"


def end_span(span: Span, stream: Stream, outcome: str) -> None:
    """Ends a request's span with its outcome as the metrics name it, its worker, and its attempts and queueing time."""
    worker = stream.worker.address if stream.worker is not None else ""
    span.set({OUTCOME: outcome, WORKER: worker, ATTEMPTS: stream.attempts, TIME_IN_QUEUE: stream.waited})
    span.end("" if outcome in ("finished", "aborted") else outcome)
