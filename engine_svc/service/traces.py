"""The engine's spans in the traces of requests."""

from __future__ import annotations

from engine_svc.requests.outputs import SequenceDelta, Usage
from quire.rpc.context import current_trace
from quire.rpc.trace import to_trace
from quire.tracing.attributes import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    FINISH_REASONS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PROMPT_TOKENS,
    REQUEST_ID,
    TIME_IN_DECODE,
    TIME_IN_EXECUTE,
    TIME_IN_FORWARD,
    TIME_IN_INFERENCE,
    TIME_IN_PREFILL,
    TIME_IN_QUEUE,
)
from quire.tracing.base import Attribute, Side, Span, Tracer
from quire.v1 import common_pb2

SPAN_NAME = "engine"


class EngineTraces:
    """Keeps the spans of live requests, by the engine's keys."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[int, Span] = {}

    def started(self, key: int, generation: common_pb2.Generation) -> None:
        """Starts the span of a new request."""
        parent = to_trace(generation) or current_trace()
        self._spans[key] = self._tracer.start(SPAN_NAME, Side.SERVER, parent, {REQUEST_ID: generation.request_id})

    def delivered(self, delta: SequenceDelta) -> None:
        """Ends the span if this is the final delta of its request; ignores other deltas."""
        if not delta.is_final or (span := self._spans.pop(delta.key, None)) is None:
            return
        if delta.finish_reason is not None:
            span.set({FINISH_REASONS: (delta.finish_reason.value,)})
        if delta.usage is not None:
            span.set(_attributes(delta.usage, self._tracer.details))
            if self._tracer.details:
                _tell_phases(span, delta.usage)
        span.end("" if delta.error is None else delta.error.message)

    def left(self, key: int) -> None:
        """Ends the span of a request whose caller has left, as aborted but without an error."""
        if span := self._spans.pop(key, None):
            span.set({FINISH_REASONS: ("abort",)})
            span.end()


def _attributes(usage: Usage, details: frozenset[str]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        PROMPT_TOKENS: usage.prompt_tokens,
        INPUT_TOKENS: usage.prompt_tokens,
        COMPLETION_TOKENS: usage.completion_tokens,
        OUTPUT_TOKENS: usage.completion_tokens,
        CACHED_TOKENS: usage.cached_prompt_tokens,
        PREEMPTIONS: usage.preemptions,
        TIME_IN_QUEUE: usage.queue_seconds,
        TIME_IN_PREFILL: usage.prefill_seconds,
        TIME_IN_DECODE: usage.decode_seconds,
        TIME_IN_INFERENCE: usage.prefill_seconds + usage.decode_seconds,
    }
    if "model" in details:
        found[TIME_IN_FORWARD] = usage.forward_seconds
    if "worker" in details:
        found[TIME_IN_EXECUTE] = usage.execute_seconds
    return found


def _tell_phases(span: Span, usage: Usage) -> None:
    began = 0.0
    phases = {"queue": usage.queue_seconds, "prefill": usage.prefill_seconds, "decode": usage.decode_seconds}
    for name, seconds in phases.items():
        span.phase(name, began, began + seconds)
        began += seconds
