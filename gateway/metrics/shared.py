"""Metrics of gateways that share a port: each of them can report the values of all.

Each gateway regularly writes its own values to a file whose name its successor shares: a gateway that dies takes no
values with it, and sums do not decrease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.metrics.prometheus import WHOLE_FLEET

_WRITE_SECONDS = 0.5
_ALIVE_SECONDS = 5.0  # a gateway that has not written for longer has no live requests
_PARTIAL = ".partial"

# Identifies a sample within its family: its name and labels.
_Key = tuple[str, tuple[tuple[str, str], ...]]


class Family(msgspec.Struct, frozen=True):
    """One metric of one gateway."""

    name: str
    text: str
    kind: str
    samples: Sequence[tuple[str, Mapping[str, str], float]]

    @property
    def adds_up(self) -> bool:
        """Whether the metric is each gateway's own, rather than one of the fleet that all report alike."""
        return not self.text.endswith(WHOLE_FLEET)

    @property
    def by_key(self) -> dict[_Key, float]:
        """The samples' values by key."""
        return {(name, tuple(sorted(labels.items()))): value for name, labels, value in self.samples}


class Figures(msgspec.Struct, frozen=True):
    """The values that one gateway shares with the others."""

    num_live: int = 0  # live requests
    families: Sequence[Family] = ()


class SharedFigures(Collector):
    """Reports this gateway's metrics together with those of the gateways that share its port.

    Each gateway's own metrics are summed. Fleet metrics are taken from this gateway, except counters, for which the
    maximum of all is used: a gateway that has just started may lack the counts of workers that are gone.
    """

    def __init__(self, own: Collector, num_live: Callable[[], int], place: Path) -> None:
        """
        Args:
            own: collector of this gateway's metrics.
            num_live: returns the number of its live requests.
            place: its file, in the folder shared by the gateways.
        """
        self._own = own
        self._num_live = num_live
        self._place = place
        # What its predecessors of the same name have counted.
        self._before = [family for family in _read(place).families if family.adds_up]

    @property
    def num_live(self) -> int:
        """Number of live requests in all gateways."""
        return self._num_live() + sum(_read(place).num_live for place in self._siblings() if _is_alive(place))

    async def run(self) -> None:
        """Writes the file regularly, until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                self.write()
            await asyncio.sleep(_WRITE_SECONDS)

    def write(self) -> None:
        """Writes the file for the other gateways.

        Raises:
            OSError: the folder is gone, or full.
        """
        partial = self._place.with_suffix(_PARTIAL)
        partial.write_bytes(msgspec.msgpack.encode(Figures(self._num_live(), self._mine())))
        partial.replace(self._place)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client."""
        others: dict[str, list[Family]] = {}
        for place in self._siblings():
            for family in _read(place).families:
                others.setdefault(family.name, []).append(family)
        for family in self._mine():
            yield _metric(_joined(family, others.get(family.name, ())))

    def _mine(self) -> list[Family]:
        before = {family.name: family for family in self._before}
        now = [_family(metric) for metric in self._own.collect()]
        return [_joined(family, [before[family.name]] if family.name in before else []) for family in now]

    def _siblings(self) -> list[Path]:
        return [place for place in self._place.parent.glob("*.figures") if place != self._place]


def place_of(folder: str, name: str) -> Path:
    """Returns the file of the gateway of that name; without a name, of this process."""
    return Path(folder) / f"{name or os.getpid()}.figures"


def _joined(family: Family, others: Iterable[Family]) -> Family:
    """Combines a counter or histogram with those of others: sums of own metrics, maxima of fleet metrics.

    Other metrics are returned unchanged.
    """
    if family.kind not in ("counter", "histogram"):
        return family
    values = family.by_key
    for other in others:
        for key, value in other.by_key.items():
            before = values.get(key, 0.0)
            values[key] = before + value if family.adds_up else max(before, value)
    samples = [(name, dict(labels), value) for (name, labels), value in values.items()]
    return msgspec.structs.replace(family, samples=samples)


def _family(metric: Metric) -> Family:
    samples = [(sample.name, sample.labels, sample.value) for sample in metric.samples]
    return Family(metric.name, metric.documentation, metric.type, samples)


def _metric(family: Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    for name, labels, value in family.samples:
        metric.add_sample(name, dict(labels), value)
    return metric


def _read(place: Path) -> Figures:
    """Reads a file; empty if it does not exist, or was written by another version."""
    try:
        return msgspec.msgpack.decode(place.read_bytes(), type=Figures)
    except (OSError, msgspec.DecodeError):
        return Figures()


def _is_alive(place: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - place.stat().st_mtime < _ALIVE_SECONDS
    return False
