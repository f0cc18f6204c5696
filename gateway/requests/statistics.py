"""Measurements of the gateway's requests, exported by `metrics`."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.pooled import PooledPart
from gateway.requests.pooling_request import PoolingRequest
from gateway.requests.state import GenerationUsage, RequestState
from quire.histogram import Histogram

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)

# Histogram → its bucket bounds; the names are the metrics' names.
HISTOGRAMS = {
    "time_to_first_token_seconds": _TTFT,
    "time_per_output_token_seconds": _TPOT,
    "inter_token_latency_seconds": _TPOT,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_prompt_tokens": _TOKENS,
    "request_prefill_kv_computed_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "request_num_preemptions": _PREEMPTIONS,
    "request_params_n": _CHOICES,
    "request_params_max_tokens": _TOKENS,
}


class ModelStatistics:
    """Measurements of the requests for one model."""

    def __init__(self) -> None:
        self.histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self.finished: Counter[str] = Counter()  # choices by finish reason

    def observe(self, name: str, value: float) -> None:
        """Records one observation."""
        self.histograms[name].observe(value)


@dataclass
class _Clock:
    """Timestamps of one live request and its choices."""

    start: float
    first: dict[int, float] = field(default_factory=dict)  # choice → time of its first token
    last: dict[int, float] = field(default_factory=dict)  # choice → time of its last token
    end: float = 0.0  # end of its text; the usage may arrive later


class RequestStatistics:
    """Measurements of all requests, by model."""

    def __init__(self) -> None:
        self.models: dict[str, ModelStatistics] = {}
        # Generations that moved to another router.
        self.streams_moved = 0
        # Choices whose text moved to another session with the tokenizer service.
        self.texts_moved = 0
        self._clocks: dict[RequestState, _Clock] = {}
        self._num_pooling = 0

    @property
    def num_live(self) -> int:
        """Number of live requests."""
        return len(self._clocks) + self._num_pooling

    def _of(self, model: str) -> ModelStatistics:
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = ModelStatistics()
        return found

    @contextlib.contextmanager
    def pooling(self, request: PoolingRequest) -> Iterator[Callable[[Sequence[PooledPart]], None]]:
        """Measures a pooling request while the context is open; yields a function to call with its results."""
        model = self._of(request.model.main_name)
        start = time.monotonic()
        self._num_pooling += 1
        reason = "abort"

        def take(parts: Sequence[PooledPart]) -> None:
            nonlocal reason
            reason = "stop"
            model.observe("e2e_request_latency_seconds", time.monotonic() - start)
            model.observe("request_prompt_tokens", request.num_tokens)
            model.observe("request_queue_time_seconds", max(part.queue_seconds for part in parts))
            model.observe("request_prefill_time_seconds", max(part.compute_seconds for part in parts))
            model.observe("request_inference_time_seconds", max(part.compute_seconds for part in parts))

        try:
            yield take
        finally:
            model.finished[reason] += len(request.inputs)
            self._num_pooling -= 1

    def started(self, state: RequestState) -> None:
        """Called when a request is about to be handed to the router."""
        self._clocks[state] = _Clock(time.monotonic())
        model = self._of(state.request.model)
        model.observe("request_params_n", state.request.n)
        if (max_tokens := state.request.sampling.max_tokens) is not None:
            model.observe("request_params_max_tokens", max_tokens)

    def progressed(self, state: RequestState, update: ChoiceUpdate, now: float) -> None:
        """Called for each update on its way to the client."""
        clock = self._clocks.get(state)
        if clock is None:
            return
        model = self.models[state.request.model]
        if update.token_ids:
            if update.index in clock.first:
                model.observe("inter_token_latency_seconds", now - clock.last[update.index])
            else:
                if not clock.first:
                    model.observe("time_to_first_token_seconds", now - clock.start)
                clock.first[update.index] = now
            clock.last[update.index] = now
        if finish := update.finish:
            clock.end = now
            model.finished[finish.reason.value] += 1

    def ended(self, state: RequestState) -> None:
        """Called when a request has ended, in whatever way."""
        clock = self._clocks.pop(state, None)
        if clock is None:
            return
        model = self.models[state.request.model]
        if state.open_choices:
            model.finished["abort"] += state.open_choices
            return
        choices = [choice for stream in state.streams for choice in stream.choices]
        model.observe("e2e_request_latency_seconds", clock.end - clock.start)
        model.observe("request_prompt_tokens", state.prompt_tokens)
        model.observe("request_generation_tokens", state.num_generated)
        model.observe("request_max_num_generation_tokens", max(choice.num_tokens for choice in choices))
        late = {index for index, last in clock.last.items() if last > clock.first[index]}  # took several updates
        for choice in choices:
            if choice.num_tokens > 1 and choice.index in late:
                seconds = clock.last[choice.index] - clock.first[choice.index]
                model.observe("time_per_output_token_seconds", seconds / (choice.num_tokens - 1))
        for stream in state.streams:
            if stream.usage:
                _observe_usage(model, stream.prompt.num_tokens, stream.usage)


def _observe_usage(model: ModelStatistics, prompt_tokens: int, usage: GenerationUsage) -> None:
    model.observe("request_prefill_kv_computed_tokens", prompt_tokens - usage.cached_prompt_tokens)
    model.observe("request_num_preemptions", usage.preemptions)
    model.observe("request_queue_time_seconds", usage.router_queue_seconds + usage.queue_seconds)
    model.observe("request_prefill_time_seconds", usage.prefill_seconds)
    model.observe("request_decode_time_seconds", usage.decode_seconds)
    model.observe("request_inference_time_seconds", usage.prefill_seconds + usage.decode_seconds)
