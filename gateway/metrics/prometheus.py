"""Helpers shared by the fleet metrics and the request metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from quire.histogram import HistogramSnapshot

MODEL_LABEL = "model_name"
WHOLE_FLEET = "Covers the whole fleet; every gateway reports the same value."


def gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
    """Builds a gauge of the fleet, with a value per model."""
    family = GaugeMetricFamily(name, f"{text} {WHOLE_FLEET}", labels=[MODEL_LABEL])
    for model, value in values.items():
        family.add_metric([model], value)
    return family


def counter(name: str, text: str, values: Mapping[str, float]) -> Metric:
    """Builds a counter of the fleet, with a value per model."""
    family = CounterMetricFamily(name, f"{text} {WHOLE_FLEET}", labels=[MODEL_LABEL])
    for model, value in values.items():
        family.add_metric([model], value)
    return family


def ratio(part: float, whole: float) -> float:
    """Returns part / whole; 0 if whole is 0."""
    return part / whole if whole else 0.0


def histogram_family(name: str, text: str, snapshots: Mapping[str, HistogramSnapshot]) -> HistogramMetricFamily:
    """Builds a histogram with a snapshot per model."""
    family = HistogramMetricFamily(name, text, labels=[MODEL_LABEL])
    for model, snapshot in snapshots.items():
        add_snapshot(family, [model], snapshot)
    return family


def add_snapshot(family: HistogramMetricFamily, labels: Sequence[str], snapshot: HistogramSnapshot) -> None:
    """Adds a snapshot to a histogram."""
    bounds = [*map(floatToGoString, snapshot.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(snapshot.counts), strict=True)), snapshot.sum)
