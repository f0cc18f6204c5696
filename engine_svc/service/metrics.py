"""The engine's load and counters as Prometheus metrics, read when they are scraped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_svc.requests.outputs import Counters, Load
from quire.errors import Unavailable
from quire.histogram import HistogramSnapshot


class EngineCollector(Collector):
    """Renders `load()`; nothing while the model loads."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape, in the metrics server's thread."""
        try:
            load = self._load()
        except Unavailable:
            return
        yield from _gauges(load)
        yield from _counters(load.counters)
        yield from _histograms(load.counters)


def _gauges(load: Load) -> Iterator[Metric]:
    yield GaugeMetricFamily("quire_engine_running_sequences", "Sequences in the batch.", load.running_sequences)
    yield GaugeMetricFamily("quire_engine_waiting_requests", "Requests that wait.", load.waiting_requests)
    yield GaugeMetricFamily(
        "quire_engine_waiting_tokens", "Tokens that wait to be computed.", load.waiting_prefill_tokens
    )
    yield GaugeMetricFamily("quire_engine_kv_blocks", "KV blocks in all.", load.total_kv_blocks)
    yield GaugeMetricFamily("quire_engine_kv_blocks_used", "KV blocks of live sequences.", load.used_kv_blocks)
    yield GaugeMetricFamily("quire_engine_host_blocks", "Blocks of the host tier.", load.total_host_blocks)
    yield GaugeMetricFamily("quire_engine_host_blocks_used", "Those that keep something.", load.used_host_blocks)
    yield GaugeMetricFamily(
        "quire_engine_swapped_sequences",
        "Preempted sequences that wait while the host tier keeps what the device has to forget of them.",
        load.swapped_sequences,
    )
    yield CounterMetricFamily("quire_engine_steps", "Engine steps.", load.step)


def _counters(counters: Counters) -> Iterator[Metric]:
    yield CounterMetricFamily("quire_engine_prompt_tokens", "Prompt tokens computed or found.", counters.prompt_tokens)
    yield CounterMetricFamily("quire_engine_generation_tokens", "Tokens generated.", counters.generation_tokens)
    yield CounterMetricFamily("quire_engine_preemptions", "Sequences preempted.", counters.preemptions)
    yield CounterMetricFamily(
        "quire_engine_prefix_cache_queries", "Tokens looked up in the prefix cache.", counters.prefix_cache_queries
    )
    yield CounterMetricFamily(
        "quire_engine_prefix_cache_hits", "Tokens found in the prefix cache.", counters.prefix_cache_hits
    )
    yield CounterMetricFamily(
        "quire_engine_host_cache_queries", "Tokens looked up in the host tier.", counters.host_cache_queries
    )
    yield CounterMetricFamily("quire_engine_host_cache_hits", "Tokens found there.", counters.host_cache_hits)
    yield CounterMetricFamily("quire_engine_computed_tokens", "Tokens computed.", counters.computed_tokens)


def _histograms(counters: Counters) -> Iterator[Metric]:
    yield _histogram(
        "quire_engine_iteration_tokens", "Prompts completed and tokens generated, in tokens per step.",
        counters.iteration_tokens, 1.0,
    )  # fmt: skip
    yield _histogram(
        "quire_engine_model_forward_seconds", "Time in the forward pass per step.", counters.model_forward_milliseconds,
        0.001,
    )  # fmt: skip
    yield _histogram(
        "quire_engine_model_execute_seconds", "Time in the executor per step.", counters.model_execute_milliseconds,
        0.001,
    )  # fmt: skip


def _histogram(name: str, help: str, snapshot: HistogramSnapshot, unit: float) -> HistogramMetricFamily:
    """A histogram whose bounds and sum are multiplied by `unit`."""
    buckets, total = [], 0
    for bound, count in zip((*snapshot.bounds, math.inf), snapshot.counts, strict=True):
        total += count
        buckets.append((_le(bound * unit), total))
    return HistogramMetricFamily(name, help, buckets=buckets, sum_value=snapshot.sum * unit)


def _le(bound: float) -> str:
    """A bucket's bound as Prometheus writes it."""
    return "+Inf" if bound == math.inf else repr(round(bound, 9))
