"""Metrics of `/v1/realtime`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.requests.realtime_sessions import RealtimeSessions


def realtime_metrics(sessions: RealtimeSessions) -> Iterator[Metric]:
    """Yields the metrics."""
    yield GaugeMetricFamily(
        "quire_gateway_realtime_sessions", "Open connections of /v1/realtime to this gateway.", value=sessions.num_live
    )
    yield CounterMetricFamily(
        "quire_gateway_realtime_sessions_started", "Connections of /v1/realtime so far.", value=sessions.num_started
    )
    yield CounterMetricFamily(
        "quire_gateway_realtime_audio_seconds", "Audio that these have sent to be transcribed, in seconds.",
        value=sessions.audio_seconds,
    )  # fmt: skip
