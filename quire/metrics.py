"""Prometheus metrics: the process's registry and its endpoint."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from quire.errors import StartupError

logger = logging.getLogger(__name__)


def new_registry() -> CollectorRegistry:
    """A registry with the process's own metrics. Passed around as a value; nothing is registered globally."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


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
