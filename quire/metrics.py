"""Prometheus metrics: the process's registry and its endpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.certificates import certificate_expiries
from quire.errors import StartupError
from quire.watched_files import failed_reloads

logger = logging.getLogger(__name__)


def new_registry() -> CollectorRegistry:
    """A registry with the process's own metrics. Passed around as a value; nothing is registered globally."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class FilesCollector(Collector):
    """Reports the files that this process watches, and when its certificates expire."""

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client."""
        family = GaugeMetricFamily(
            "quire_failed_reloads",
            "1 while these files have changed but cannot be read, so that the old ones are in use; otherwise 0.",
            labels=["files"],
        )
        for files, failed in failed_reloads().items():
            family.add_metric([files], failed)
        yield family
        family = GaugeMetricFamily(
            "quire_tls_certificate_expiry_timestamp_seconds",
            "Unix time at which the first of the certificates in use expires.",
            labels=["files"],
        )
        for files, end in certificate_expiries().items():
            family.add_metric([files], end)
        yield family


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serves /metrics on its own port from a daemon thread; port 0 turns it off.

    Raises:
        StartupError: the port is taken.
    """
    if not port:
        return
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise StartupError(
            f"Cannot serve metrics on {host}:{port}: {error.strerror}. Choose another --metrics-port."
        ) from error
    logger.info("metrics on http://%s:%d/metrics", host, port)
