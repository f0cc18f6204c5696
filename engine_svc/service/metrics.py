"""The engine's load and counters as Prometheus metrics, read when they are scraped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_svc.requests.outputs import EngineLoad
from quire.counters import COUNTS, HELP, HISTOGRAMS, Counters
from quire.errors import Unavailable
from quire.histogram import HistogramSnapshot


class EngineCollector(Collector):
    """Exports the metrics of `load()`; none while the model loads."""

    def __init__(self, load: Callable[[], EngineLoad]) -> None:
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


def _gauges(load: EngineLoad) -> Iterator[Metric]:
    yield GaugeMetricFamily("quire_engine_running_sequences", "Sequences in the running batch.", load.running_sequences)
    yield GaugeMetricFamily(
        "quire_engine_waiting_requests",
        "Sequences waiting to join the batch, new or preempted; for pooling models, requests that have not started.",
        load.waiting_requests,
    )
    yield GaugeMetricFamily(
        "quire_engine_waiting_tokens", "Tokens waiting to be computed.", load.waiting_prefill_tokens
    )
    yield GaugeMetricFamily("quire_engine_kv_blocks", "Total number of KV blocks on the device.", load.total_kv_blocks)
    yield GaugeMetricFamily(
        "quire_engine_kv_blocks_used", "KV blocks on the device held by live sequences.", load.used_kv_blocks
    )
    yield GaugeMetricFamily(
        "quire_engine_host_blocks", "Total number of KV blocks in host memory (--swap-space).", load.total_host_blocks
    )
    yield GaugeMetricFamily(
        "quire_engine_host_blocks_used", "KV blocks in use in host memory (--swap-space).", load.used_host_blocks
    )
    yield GaugeMetricFamily(
        "quire_engine_swapped_sequences",
        "Preempted sequences waiting to resume, whose KV blocks move to host memory (--swap-space) when evicted.",
        load.swapped_sequences,
    )
    yield GaugeMetricFamily(
        "quire_engine_paused",
        "1 while the engine is paused or asleep and its requests make no progress; otherwise 0.",
        load.status.is_paused,
    )
    yield _weights(load)
    if load.max_loras:
        yield _lora_requests(load)
    yield CounterMetricFamily("quire_engine_steps", "Engine steps since start.", load.step)


def _weights(load: EngineLoad) -> Metric:
    metric = GaugeMetricFamily(
        "quire_engine_weights_info",
        "1, with the name of the weights that were loaded at runtime as a label, which is empty if there are none.",
        labels=("weight_version",),
    )
    metric.add_metric((load.status.weight_version,), 1)
    return metric


def _lora_requests(load: EngineLoad) -> Metric:
    """Adapter info in vLLM's format: the adapter names are labels, and the value is the Unix time."""
    running = ",".join(adapter.name for adapter in load.adapters if adapter.running_sequences)
    waiting = ",".join(adapter.name for adapter in load.adapters if adapter.waiting_sequences)
    metric = GaugeMetricFamily(
        "quire_engine_lora_requests_info",
        "Adapters of running and waiting sequences, as labels. The value is the Unix time in seconds.",
        labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    )
    metric.add_metric((str(load.max_loras), running, waiting), time.time())
    return metric


def _counters(counters: Counters) -> Iterator[Metric]:
    for name in COUNTS:
        yield CounterMetricFamily(f"quire_engine_{name}", HELP[name], getattr(counters, name))


def _histograms(counters: Counters) -> Iterator[Metric]:
    """Histograms, with times converted from milliseconds to seconds."""
    for name in HISTOGRAMS:
        seconds = name.replace("_milliseconds", "_seconds")
        unit = 1.0 if seconds == name else 0.001
        yield _histogram(f"quire_engine_{seconds}", HELP[name], getattr(counters, name), unit)


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
