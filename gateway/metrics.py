"""`/metrics`: one set of values under two names, native `quire_*` and `vllm:*`, so that vLLM's dashboards work.

Figures of the engines are those that the router heard last; figures of requests are the gateway's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.services import Fleet
from gateway.statistics import HISTOGRAMS, RequestStatistics
from quire.histogram import HistogramSnapshot
from quire.v1 import common_pb2, router_pb2

PREFIXES = ("vllm:", "quire_")
_LABEL = "model_name"

# What Quire does not do yet happens zero times; dashboards expect the names.
_ZERO_GAUGES = (
    "num_requests_swapped", "cpu_cache_usage_perc", "cpu_prefix_cache_hit_rate", "spec_decode_draft_acceptance_rate",
    "spec_decode_efficiency",
)  # fmt: skip
_ZERO_COUNTERS = (
    "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens", "spec_decode_num_emitted_tokens",
)  # fmt: skip

Workers = Mapping[str, Sequence[router_pb2.Worker]]


class GatewayCollector(Collector):
    """Renders the current values when Prometheus asks."""

    def __init__(self, fleet: Fleet, statistics: RequestStatistics) -> None:
        self._fleet = fleet
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client."""
        workers: dict[str, list[router_pb2.Worker]] = {}
        for worker in self._fleet.ready:
            workers.setdefault(worker.model_info.served_model_names[0], []).append(worker)
        for prefix in PREFIXES:
            yield from _gauges(prefix, workers)
            yield from _counters(prefix, workers)
            yield from _engine_histograms(prefix, workers)
            yield from self._request_metrics(prefix)
        yield CounterMetricFamily(
            "quire_gateway_streams_moved",
            "Generations that went on at another router, because theirs was lost or refused them.",
            value=self._statistics.streams_moved,
        )

    def _request_metrics(self, prefix: str) -> Iterator[Metric]:
        models = self._statistics.models
        success = CounterMetricFamily(
            f"{prefix}request_success", "Choices ended, by reason.", labels=[_LABEL, "finished_reason"]
        )
        for model, statistics in models.items():
            for reason, count in statistics.finished.items():
                success.add_metric([model, reason], count)
        yield success
        aliases = {"time_in_queue_requests": "request_queue_time_seconds"}
        for name in (*HISTOGRAMS, *aliases):
            source = aliases.get(name, name)
            snapshots = {model: entry.histograms[source].snapshot() for model, entry in models.items()}
            yield _histogram(prefix + name, snapshots)


def _gauges(prefix: str, workers: Workers) -> Iterator[Metric]:
    def gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(prefix + name, text, labels=[_LABEL])
        for model, value in values.items():
            family.add_metric([model], value)
        return family

    loads = {model: [worker.load for worker in group] for model, group in workers.items()}
    running = {model: sum(load.running_sequences for load in group) for model, group in loads.items()}
    waiting = {model: sum(load.waiting_requests for load in group) for model, group in loads.items()}
    yield gauge("num_requests_running", "Sequences running.", running)
    yield gauge("num_requests_waiting", "Requests waiting.", waiting)
    usage = {
        model: _ratio(sum(load.used_kv_blocks for load in group), sum(load.total_kv_blocks for load in group))
        for model, group in loads.items()
    }
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        yield gauge(name, "Share of the KV cache in use, 1 meaning full.", usage)
    counters = {model: [load.counters for load in group] for model, group in loads.items()}
    hits = {
        model: _ratio(sum(c.prefix_cache_hits for c in group), sum(c.prefix_cache_queries for c in group))
        for model, group in counters.items()
    }
    yield gauge("gpu_prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache.", hits)
    for name in _ZERO_GAUGES:
        yield gauge(name, "Not used by Quire.", dict.fromkeys(workers, 0.0))
    yield from _infos(prefix, workers)


def _infos(prefix: str, workers: Workers) -> Iterator[Metric]:
    lora = GaugeMetricFamily(
        f"{prefix}lora_requests_info", "No adapters are served.",
        labels=[_LABEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )  # fmt: skip
    cache = InfoMetricFamily(f"{prefix}cache_config", "Shape of the KV cache of a worker.", labels=[_LABEL])
    for model, group in workers.items():
        lora.add_metric([model, "0", "", ""], 0)
        info = group[0].model_info
        shape = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_kv_blocks)}
        cache.add_metric([model], shape)
    yield lora
    yield cache


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens computed."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "num_preemptions": ("preemptions", "Preemptions."),
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens found in the prefix cache."),
    "gpu_prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "gpu_prefix_cache_hits": ("prefix_cache_hits", "Tokens found in the prefix cache."),
}


def _counters(prefix: str, workers: Workers) -> Iterator[Metric]:
    for name, (field, text) in _COUNTERS.items():
        family = CounterMetricFamily(prefix + name, text, labels=[_LABEL])
        for model, group in workers.items():
            family.add_metric([model], sum(getattr(worker.load.counters, field) for worker in group))
        yield family
    for name in _ZERO_COUNTERS:
        family = CounterMetricFamily(prefix + name, "Not used by Quire.", labels=[_LABEL])
        for model in workers:
            family.add_metric([model], 0)
        yield family


_ENGINE_HISTOGRAMS = {
    "iteration_tokens_total": "iteration_tokens",
    "model_forward_time_milliseconds": "model_forward_milliseconds",
    "model_execute_time_milliseconds": "model_execute_milliseconds",
}


def _engine_histograms(prefix: str, workers: Workers) -> Iterator[Metric]:
    for name, field in _ENGINE_HISTOGRAMS.items():
        sums = {
            model: _sum([getattr(worker.load.counters, field) for worker in group]) for model, group in workers.items()
        }
        yield _histogram(prefix + name, {model: snapshot for model, snapshot in sums.items() if snapshot})


def _sum(histograms: Iterable[common_pb2.Histogram]) -> HistogramSnapshot | None:
    """Histograms with the same bounds as one; None before any worker has told."""
    told = [histogram for histogram in histograms if histogram.counts]
    if not told:
        return None
    counts = tuple(sum(column) for column in zip(*(histogram.counts for histogram in told), strict=True))
    return HistogramSnapshot(tuple(told[0].bounds), counts, sum(histogram.sum for histogram in told))


def _histogram(name: str, snapshots: Mapping[str, HistogramSnapshot]) -> Metric:
    family = HistogramMetricFamily(name, name.partition(":")[2] or name, labels=[_LABEL])
    for model, snapshot in snapshots.items():
        bounds = [*(f"{bound:g}" for bound in snapshot.bounds), "+Inf"]
        family.add_metric([model], list(zip(bounds, accumulate(snapshot.counts), strict=True)), snapshot.sum)
    return family
