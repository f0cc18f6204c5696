"""Helpers shared by the fleet metrics and the request metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from gateway.services.fleet import EngineKey
from quire.histogram import HistogramSnapshot

MODEL_LABEL = "model_name"
ENGINE_LABELS = (MODEL_LABEL, "engine")
WHOLE_FLEET = "Covers the whole fleet; every gateway reports the same value."


def labels_of(engine: EngineKey) -> list[str]:
    """The values of ENGINE_LABELS."""
    return [engine.model, str(engine.rank)]


def gauge(name: str, text: str, values: Mapping[EngineKey, float]) -> Metric:
    """Builds a gauge of the fleet, with a value per engine."""
    family = GaugeMetricFamily(name, f"{text} {WHOLE_FLEET}", labels=ENGINE_LABELS)
    for engine, value in values.items():
        family.add_metric(labels_of(engine), value)
    return family


def counter(name: str, text: str, values: Mapping[EngineKey, float]) -> Metric:
    """Builds a counter of the fleet, with a value per engine."""
    family = CounterMetricFamily(name, f"{text} {WHOLE_FLEET}", labels=ENGINE_LABELS)
    for engine, value in values.items():
        family.add_metric(labels_of(engine), value)
    return family


def ratio(part: float, whole: float) -> float:
    """Returns part / whole; 0 if whole is 0."""
    return part / whole if whole else 0.0


def histogram_family(name: str, text: str, snapshots: Mapping[EngineKey, HistogramSnapshot]) -> HistogramMetricFamily:
    """Builds a histogram with a snapshot per engine."""
    family = HistogramMetricFamily(name, text, labels=ENGINE_LABELS)
    for engine, snapshot in snapshots.items():
        add_snapshot(family, labels_of(engine), snapshot)
    return family


def add_snapshot(family: HistogramMetricFamily, labels: Sequence[str], snapshot: HistogramSnapshot) -> None:
    """Adds a snapshot to a histogram."""
    bounds = [*map(floatToGoString, snapshot.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(snapshot.counts), strict=True)), snapshot.sum)
