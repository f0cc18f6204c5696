"""Load reports in ORCA's format, sent with an answer on request, for load-balancing proxies."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.metrics.fleet import used_share, waiting_requests
from gateway.services.fleet import Fleet

_HEADER = "endpoint-load-metrics"


def load_report(form: str, model: str, fleet: Fleet, queued: Mapping[str, int]) -> dict[str, str]:
    """Returns the headers to add to an answer; empty if no report was requested.

    Args:
        form: TEXT or JSON, or empty.
        model: main name of the model whose workers to report.
        queued: see `fleet_metrics`.
    """
    if not form:
        return {}
    loads = [load for engine, group in fleet.loads.items() if engine.model == model for load in group]
    waiting = [count for engine, count in waiting_requests(fleet, queued).items() if engine.model == model]
    figures = {"kv_cache_usage_perc": used_share(loads), "num_requests_waiting": sum(waiting)}
    if form == "JSON":
        return {_HEADER: f"JSON {msgspec.json.encode({'named_metrics': figures}).decode()}"}
    return {_HEADER: "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in figures.items())}
