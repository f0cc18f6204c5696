"""Metrics of the engines, as last reported by the routers.

All gateways of a fleet report the same values: use those of one gateway, or the maximum, not the sum. A worker counts
once, however many routers know it; each router's own queue counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from gateway.metrics.adapters import adapter_metrics
from gateway.metrics.prometheus import ENGINE_LABELS, WHOLE_FLEET, counter, gauge, histogram_family, labels_of, ratio
from gateway.metrics.rest import rest_metrics
from gateway.metrics.speculation import speculation_metrics
from gateway.services.fleet import EngineKey, Fleet, engine_key
from quire.counters import HELP
from quire.histogram import HistogramSnapshot

if TYPE_CHECKING:
    from quire.v1.common_pb2 import EngineCounters, EngineLoad

Loads: TypeAlias = "Sequence[EngineLoad]"

_USED = "Fraction of the KV cache held by live sequences, from 0 to 1."
_GAUGES: Mapping[str, tuple[str, Callable[[Loads], float]]] = MappingProxyType(
    {
        "num_requests_running": (
            "Sequences in the running batch.",
            lambda loads: sum(load.running_sequences for load in loads),
        ),
        "num_requests_swapped": (
            "Preempted sequences waiting to resume, whose KV blocks move to host memory (--swap-space) when evicted.",
            lambda loads: sum(load.swapped_sequences for load in loads),
        ),
        "kv_cache_usage_perc": (_USED, lambda loads: used_share(loads)),
        "gpu_cache_usage_perc": (_USED, lambda loads: used_share(loads)),
        "cpu_cache_usage_perc": (
            "Fraction of the KV blocks in host memory (--swap-space) in use, from 0 to 1; 0 if there are none.",
            lambda loads: ratio(
                sum(load.used_host_blocks for load in loads), sum(load.total_host_blocks for load in loads)
            ),
        ),
    }
)
_RATES: Mapping[str, tuple[str, Callable[[EngineCounters], float]]] = MappingProxyType(
    {
        "gpu_prefix_cache_hit_rate": (
            "Fraction of the tokens looked up that were in the prefix cache on the device, from 0 to 1.",
            lambda count: ratio(count.prefix_cache_hits, count.prefix_cache_queries),
        ),
        "cpu_prefix_cache_hit_rate": (
            "Fraction of the tokens missing on the device that host memory had, from 0 to 1.",
            lambda count: ratio(count.host_cache_hits, count.external_cache_queries),
        ),
    }
)
# metric → engine counter
_COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "prompt_tokens": "prompt_tokens",
        "generation_tokens": "generation_tokens",
        "num_preemptions": "preemptions",
        "num_dual_batch_steps": "dual_batch_steps",
        "num_encoded_media": "encoded_media",
        "num_pulled_media": "pulled_media",
        "num_failed_media_pulls": "failed_media_pulls",
        "prefix_cache_queries": "prefix_cache_queries",
        "prefix_cache_hits": "prefix_cache_hits",
        "gpu_prefix_cache_queries": "prefix_cache_queries",
        "gpu_prefix_cache_hits": "prefix_cache_hits",
        "external_prefix_cache_queries": "external_cache_queries",
        "external_prefix_cache_hits": "external_cache_hits",
        "cpu_prefix_cache_hits": "host_cache_hits",
    }
)
# vLLM's label of a direction → engine counter
_OFFLOADED: Mapping[str, str] = MappingProxyType({"GPU_to_CPU": "host_saved_bytes", "CPU_to_GPU": "host_loaded_bytes"})
_HISTOGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "iteration_tokens_total": "iteration_tokens",
        "model_forward_time_milliseconds": "model_forward_milliseconds",
        "model_execute_time_milliseconds": "model_execute_milliseconds",
    }
)


def fleet_metrics(prefix: str, fleet: Fleet, queued: Mapping[str, int]) -> Iterator[Metric]:
    """Yields all metrics of the engines.

    Args:
        queued: number of requests waiting in the routers, by requested model name.
    """
    loads, counters = fleet.loads, fleet.counters
    for name, (text, value) in _GAUGES.items():
        yield gauge(prefix + name, text, {engine: value(group) for engine, group in loads.items()})
    yield gauge(
        f"{prefix}num_requests_waiting", "Requests waiting in the routers and the engines.",
        waiting_requests(fleet, queued),
    )  # fmt: skip
    for name, (text, rate) in _RATES.items():
        yield gauge(prefix + name, text, {engine: rate(count) for engine, count in counters.items()})
    for name, field in _COUNTERS.items():
        yield counter(prefix + name, HELP[field], {engine: getattr(count, field) for engine, count in counters.items()})
    yield counter(
        f"{prefix}prompt_tokens_cached", "Tokens found in the prefix cache, host memory or shared storage.",
        {engine: count.prefix_cache_hits + count.external_cache_hits for engine, count in counters.items()},
    )  # fmt: skip
    for name, field in _HISTOGRAMS.items():
        yield _histogram(prefix + name, HELP[field], field, counters)
    yield _offloaded(prefix, counters)
    yield from speculation_metrics(prefix, counters)
    yield _cache_config(prefix, fleet)
    yield from adapter_metrics(prefix, fleet)
    yield from rest_metrics(prefix, fleet)


def waiting_requests(fleet: Fleet, queued: Mapping[str, int]) -> Mapping[EngineKey, float]:
    """Returns the number of requests waiting in routers and engines.

    Those in routers, which no engine has yet, count for the first engine of their model, so that sums over engines are
    right. A model that no worker serves keeps the name in the requests.
    """
    waiting: dict[EngineKey, float] = {
        engine: sum(load.waiting_requests for load in group) for engine, group in fleet.loads.items()
    }
    models = fleet.models
    for name, count in queued.items():
        main = models[name].main_name if name in models else name
        first = min((engine for engine in waiting if engine.model == main), default=EngineKey(main, 0))
        waiting[first] = waiting.get(first, 0) + count
    return waiting


def _histogram(name: str, text: str, field: str, counters: Mapping[EngineKey, EngineCounters]) -> HistogramMetricFamily:
    told = {engine: getattr(count, field) for engine, count in counters.items()}
    snapshots = {
        engine: HistogramSnapshot(tuple(histogram.bounds), tuple(histogram.counts), histogram.sum)
        for engine, histogram in told.items()
        if histogram.counts
    }
    return histogram_family(name, f"{text} {WHOLE_FLEET}", snapshots)


def _offloaded(prefix: str, counters: Mapping[EngineKey, EngineCounters]) -> Metric:
    family = CounterMetricFamily(
        f"{prefix}kv_offload_total_bytes",
        f"Bytes of KV blocks copied from the device to host memory and back, on each rank. {WHOLE_FLEET}",
        labels=(*ENGINE_LABELS, "transfer_type"),
    )
    for engine, count in counters.items():
        for direction, field in _OFFLOADED.items():
            family.add_metric([*labels_of(engine), direction], getattr(count, field))
    return family


def _cache_config(prefix: str, fleet: Fleet) -> Metric:
    family = InfoMetricFamily(
        f"{prefix}cache_config",
        "KV cache of one worker: block size in tokens and number of blocks.",
        labels=ENGINE_LABELS,
    )
    infos = {engine_key(worker.model_info): worker.model_info for worker in reversed(fleet.heard)}
    for engine, info in infos.items():
        shape = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_kv_blocks)}
        family.add_metric(labels_of(engine), shape)
    return family


def used_share(loads: Loads) -> float:
    """Share of the KV cache used by live sequences."""
    return ratio(sum(load.used_kv_blocks for load in loads), sum(load.total_kv_blocks for load in loads))
