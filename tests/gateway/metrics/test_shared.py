"""Combined metrics of gateways that share a port."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.metrics.prometheus import counter, gauge, histogram_family
from gateway.metrics.shared import SharedFigures, place_of
from gateway.services.fleet import EngineKey
from quire.histogram import Histogram

ENGINE = EngineKey("m", 0)


class Gateway(Collector):
    """Has metrics of its own, and one about the fleet that it was told."""

    def __init__(self, folder: Path, name: str, fleet_tokens: int = 0) -> None:
        self.seconds = Histogram((1.0, 2.0))
        self.fleet_tokens = fleet_tokens
        self.running = 0
        self.shared = SharedFigures(self, lambda: self.running, place_of(str(folder), name))

    def collect(self) -> Iterator[Metric]:
        yield histogram_family("seconds", "Own.", {ENGINE: self.seconds.snapshot()})
        yield counter("tokens", "Fleet.", {ENGINE: self.fleet_tokens})
        yield gauge("running", "Fleet.", {ENGINE: self.running})

    def told(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(self.shared)
        lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
        labels = re.compile('engine="0",|model_name="m"')
        return {labels.sub("", line.rpartition(" ")[0]): float(line.rpartition(" ")[2]) for line in lines}


def test_own_figures_add_up_and_the_fleets_do_not(tmp_path: Path) -> None:
    first, second = Gateway(tmp_path, "gateway-0", 10), Gateway(tmp_path, "gateway-1", 12)
    first.seconds.observe(0.5)
    second.seconds.observe(1.5)
    first.running, second.running = 1, 2
    second.shared.write()
    told = first.told()
    assert (told["seconds_count{}"], told["seconds_sum{}"]) == (2, 2.0)
    assert told['seconds_bucket{le="1.0",}'] == 1
    assert (told["tokens_total{}"], told["running{}"]) == (12, 1)
    assert first.shared.num_live == 3


def test_what_a_gateway_counted_stays_when_it_dies(tmp_path: Path) -> None:
    first, second = Gateway(tmp_path, "gateway-0"), Gateway(tmp_path, "gateway-1", 12)
    second.seconds.observe(1.5)
    second.running = 2
    second.shared.write()
    os.utime(place_of(str(tmp_path), "gateway-1"), (0, 0))
    assert (first.told()["seconds_count{}"], first.told()["tokens_total{}"]) == (1, 12)
    assert first.shared.num_live == 0  # its requests died with it
    successor = Gateway(tmp_path, "gateway-1")
    successor.seconds.observe(0.5)
    successor.shared.write()
    assert first.told()["seconds_count{}"] == successor.told()["seconds_count{}"] == 2


@pytest.mark.parametrize("content", [b"", b"\x81", b"[1]", b"\x93\x01\x02\x03"])
def test_a_file_that_is_none_of_ours_is_passed_over(tmp_path: Path, content: bytes) -> None:
    gateway = Gateway(tmp_path, "gateway-0")
    (tmp_path / "gateway-1.figures").write_bytes(content)
    gateway.seconds.observe(0.5)
    assert gateway.told()["seconds_count{}"] == 1
