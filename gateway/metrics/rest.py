"""Metrics of which engines are awake, paused or asleep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.metrics.prometheus import ENGINE_LABELS, WHOLE_FLEET, labels_of
from gateway.services.fleet import Fleet
from quire.sleep import SleepLevel

if TYPE_CHECKING:
    from quire.v1.common_pb2 import EngineStatus

_AWAKE, _PAUSED = "awake", "paused"
# vLLM's names.
_STATES: Mapping[int, str] = MappingProxyType(
    {
        SleepLevel.PAUSED: _PAUSED,
        SleepLevel.WEIGHTS_KEPT: "weights_offloaded",
        SleepLevel.WEIGHTS_FORGOTTEN: "discard_all",
    }
)


def rest_metrics(prefix: str, fleet: Fleet) -> Iterator[Metric]:
    """Reports how many engines are in each state; with one per index, the values equal vLLM's."""
    family = GaugeMetricFamily(
        f"{prefix}engine_sleep_state",
        f"Number of engines awake, paused (or asleep at level 0), and asleep at levels 1 and 2. {WHOLE_FLEET}",
        labels=[*ENGINE_LABELS, "sleep_state"],
    )
    for engine, loads in fleet.loads.items():
        counts = Counter(_state(load.status) for load in loads)
        for state in (_AWAKE, *_STATES.values()):
            family.add_metric([*labels_of(engine), state], counts[state])
    yield family


def _state(status: EngineStatus) -> str:
    if status.HasField("sleep_level"):
        return _STATES.get(status.sleep_level, _PAUSED)
    return _PAUSED if status.is_paused else _AWAKE
