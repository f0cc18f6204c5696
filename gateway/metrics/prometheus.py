"""What the two kinds of the gateway's metrics have in common."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from quire.histogram import HistogramSnapshot

MODEL_LABEL = "model_name"


def histogram_family(name: str, text: str, snapshots: Mapping[str, HistogramSnapshot]) -> HistogramMetricFamily:
    """A histogram of each model."""
    family = HistogramMetricFamily(name, text, labels=[MODEL_LABEL])
    for model, snapshot in snapshots.items():
        bounds = [*map(floatToGoString, snapshot.bounds), "+Inf"]
        family.add_metric([model], list(zip(bounds, accumulate(snapshot.counts), strict=True)), snapshot.sum)
    return family
