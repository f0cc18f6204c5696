"""`/metrics`: each value under two names, native `quire_*` and `vllm:*`, so that vLLM's dashboards work.

Engine metrics are those that the routers last reported (`fleet_metrics`); request metrics are this gateway's own, and
can be summed over gateways. A vLLM metric whose feature is not used (`spec_decode_*`, `lora_requests_info`) is left
out: a constant would suggest that it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.api_keys import ApiKeys
from gateway.metrics.api_keys import api_key_metrics
from gateway.metrics.fleet import fleet_metrics
from gateway.metrics.http import HttpStatistics
from gateway.metrics.prometheus import ENGINE_LABELS, histogram_family, labels_of
from gateway.metrics.realtime import realtime_metrics
from gateway.requests.realtime_sessions import RealtimeSessions
from gateway.requests.statistics import HISTOGRAMS, RequestStatistics
from gateway.services.fleet import EngineKey, Fleet
from gateway.services.router_streams import RouterStreams
from quire.memory_guard import MemoryGuard
from quire.metrics import FilesCollector

PREFIXES = ("vllm:", "quire_")
_OWN = "Covers this gateway's requests only."
_TEXTS = {
    "time_to_first_token_seconds": "Time from a request's start to its first token, in seconds.",
    "time_per_output_token_seconds": "Time per token of a choice after its first token, in seconds.",
    "inter_token_latency_seconds": "Time between consecutive events of a choice that carry tokens, in seconds.",
    "e2e_request_latency_seconds": "Time from a request's start to the end of its text, in seconds.",
    "request_queue_time_seconds": "Time in the queues of the router and the engine, in seconds.",
    "request_prefill_time_seconds": "Time from a prompt's first step to its first generated token, in seconds.",
    "request_decode_time_seconds": "Time from the first to the last token generated for a prompt, in seconds.",
    "request_inference_time_seconds": "Time from a prompt's first step to its last generated token, in seconds.",
    "request_params_n": "Number of choices requested (n).",
    "request_params_max_tokens": "max_tokens of the requests that set it, in tokens.",
    "request_prompt_tokens": "Number of tokens in a request's prompts.",
    "request_prefill_kv_computed_tokens": "Number of tokens in a prompt that the prefix cache did not have.",
    "request_num_preemptions": "Number of times that the sequences of a prompt were preempted.",
    "request_generation_tokens": "Number of tokens generated for all choices of a request.",
    "request_max_num_generation_tokens": "Number of tokens generated for the longest choice of a request.",
}
# Metrics with two names in vLLM → the other one.
_ALIASES = {
    "time_in_queue_requests": "request_queue_time_seconds",
    "request_time_per_output_token_seconds": "time_per_output_token_seconds",
}


class GatewayCollector(Collector):
    """Collects the current values when Prometheus scrapes."""

    def __init__(
        self,
        fleet: Fleet,
        router_streams: RouterStreams,
        statistics: RequestStatistics,
        http: HttpStatistics,
        api_keys: ApiKeys,
        memory: MemoryGuard,
        realtime: RealtimeSessions,
    ) -> None:
        self._fleet = fleet
        self._router_streams = router_streams
        self._statistics = statistics
        self._http = http
        self._api_keys = api_keys
        self._memory = memory
        self._realtime = realtime

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client."""
        for prefix in PREFIXES:
            yield from fleet_metrics(prefix, self._fleet, self._router_streams.queued)
            yield from self._request_metrics(prefix)
        yield from self._http.collect()
        yield from realtime_metrics(self._realtime)
        yield from FilesCollector().collect()
        yield from api_key_metrics(self._api_keys, _OWN)
        yield CounterMetricFamily(
            "quire_gateway_streams_moved",
            "Generations moved to another router because theirs was lost or refused them.",
            value=self._statistics.streams_moved,
        )
        yield CounterMetricFamily(
            "quire_gateway_texts_moved",
            "Choices whose text moved to another tokenizer service session because theirs was lost.",
            value=self._statistics.texts_moved,
        )
        yield CounterMetricFamily(
            "quire_gateway_memory_refusals",
            "Requests refused because this gateway had nearly used up its memory limit.",
            value=self._memory.num_refused,
        )

    def _request_metrics(self, prefix: str) -> Iterator[Metric]:
        # A gateway does not know which engines have served a request, and there may be several.
        models = {EngineKey(model, 0): statistics for model, statistics in self._statistics.models.items()}
        success = CounterMetricFamily(
            f"{prefix}request_success",
            f"Choices ended, by finish reason. {_OWN}",
            labels=[*ENGINE_LABELS, "finished_reason"],
        )
        for engine, statistics in models.items():
            for reason, count in statistics.finished.items():
                success.add_metric([*labels_of(engine), reason], count)
        yield success
        for name in (*HISTOGRAMS, *_ALIASES):
            source = _ALIASES.get(name, name)
            snapshots = {engine: entry.histograms[source].snapshot() for engine, entry in models.items()}
            yield histogram_family(prefix + name, f"{_TEXTS[source]} {_OWN}", snapshots)
