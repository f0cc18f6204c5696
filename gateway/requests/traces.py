"""Trace spans of generation requests: sampling parameters, token counts, times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gateway.answers.deltas import ChoiceUpdate
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.state import RequestState
from quire.rpc.context import current_trace
from quire.tracing.attributes import (
    COMPLETION_TOKENS,
    FINISH_REASONS,
    INPUT_TOKENS,
    MAX_TOKENS,
    NUM_SEQUENCES,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUEST_ID,
    REQUEST_MODEL,
    RESPONSE_MODEL,
    TEMPERATURE,
    TIME_E2E,
    TIME_IN_DECODE,
    TIME_IN_INFERENCE,
    TIME_IN_PREFILL,
    TIME_IN_QUEUE,
    TIME_TO_FIRST_TOKEN,
    TOP_P,
    N,
)
from quire.tracing.base import Attribute, Side, Span, Tracer

SPAN_NAME = "llm_request"  # same name as in vLLM


@dataclass
class _Told:
    span: Span
    start: float
    first_token: float | None = None
    reasons: dict[int, str] = field(default_factory=dict)  # choice → finish reason


class RequestTraces:
    """Spans of the live requests."""

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._told: dict[RequestState, _Told] = {}

    def started(self, state: RequestState) -> None:
        """Called when a request is about to run; other services' work for it then belongs to `state.trace`."""
        state.trace = current_trace()
        if self._tracer is not None:
            span = self._tracer.start(SPAN_NAME, Side.CLIENT, state.trace, _asked(state.request))
            state.trace = span.trace
            self._told[state] = _Told(span, time.monotonic())

    def progressed(self, state: RequestState, update: ChoiceUpdate, now: float) -> None:
        """Called for each update on its way to the client."""
        if (told := self._told.get(state)) is None:
            return
        if update.token_ids and told.first_token is None:
            told.first_token = now
        if update.finish:
            told.reasons[update.index] = update.finish.reason.value

    def ended(self, state: RequestState) -> None:
        """Called when a request has ended, in whatever way."""
        if (told := self._told.pop(state, None)) is None:
            return
        told.span.set(_answered(state, told))
        told.span.end(f"unfinished choices: {state.open_choices}" if state.open_choices else "")


def _asked(request: GenerationRequest) -> dict[str, Attribute]:
    sampling = request.sampling
    asked: dict[str, Attribute | None] = {
        REQUEST_ID: request.request_id, REQUEST_MODEL: request.requested_model, RESPONSE_MODEL: request.model,
        TEMPERATURE: sampling.temperature, TOP_P: sampling.top_p, MAX_TOKENS: sampling.max_tokens, N: sampling.n,
    }  # fmt: skip
    return {name: value for name, value in asked.items() if value is not None}


def _answered(state: RequestState, told: _Told) -> dict[str, Attribute]:
    tokens = sum(choice.num_tokens for stream in state.streams for choice in stream.choices)
    found: dict[str, Attribute] = {
        PROMPT_TOKENS: state.prompt_tokens, INPUT_TOKENS: state.prompt_tokens, COMPLETION_TOKENS: tokens,
        OUTPUT_TOKENS: tokens, NUM_SEQUENCES: state.request.choices, TIME_E2E: time.monotonic() - told.start,
        FINISH_REASONS: tuple(told.reasons[index] for index in sorted(told.reasons)),
    }  # fmt: skip
    if told.first_token is not None:
        found[TIME_TO_FIRST_TOKEN] = told.first_token - told.start
    if usages := [stream.usage for stream in state.streams if stream.usage]:  # with several prompts, the maximum
        found[TIME_IN_QUEUE] = max(usage.router_queue_seconds + usage.queue_seconds for usage in usages)
        found[TIME_IN_PREFILL] = max(usage.prefill_seconds for usage in usages)
        found[TIME_IN_DECODE] = max(usage.decode_seconds for usage in usages)
        found[TIME_IN_INFERENCE] = max(usage.prefill_seconds + usage.decode_seconds for usage in usages)
    return found
