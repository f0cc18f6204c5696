"""deploy/observability and the queries of deploy/kubernetes: the files parse, and name only metrics and labels that
exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from gateway.api_keys import ApiKeys
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.http import HttpStatistics
from gateway.requests.realtime_sessions import RealtimeSessions
from gateway.requests.statistics import RequestStatistics
from gateway.services.fleet import Fleet
from quire.memory_guard import MemoryGuard
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from router.app import Router
from tests.support.kubernetes import render

ROOT = Path(__file__).parents[2] / "deploy"
FOLDER = ROOT / "observability"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}
# Words of a query that are followed by labels in parentheses.
GROUPINGS = r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)"
OPERATORS = {"and", "or", "unless"}
GIVEN = {"up"}  # by Prometheus


def rules(kind: str) -> dict[str, str]:
    """Name → expression of the alerts or records."""
    return {rule[kind]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if kind in rule}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """All queries of all files."""
    yield from rules("alert").values()
    yield from rules("record").values()
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"label_values\((\w+), \w+\)", r"\1", variable["query"])
    for each in render(ROOT / "kubernetes/autoscaling"):
        if each["kind"] == "ScaledObject":
            yield from (trigger["metadata"]["query"] for trigger in each["spec"]["triggers"])


def metrics_in(query: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", re.sub(r'"[^"]*"', "", query))
    bare = re.sub(GROUPINGS, "", bare)
    return set(re.findall(r"(?<![\w.])[a-z_][\w:]*\b(?!\s*\()", bare)) - OPERATORS


def names_of(metrics: Iterable[Metric]) -> set[str]:
    return {metric.name + suffix for metric in metrics for suffix in SUFFIXES.get(metric.type, ("",))}


@pytest.fixture
async def exported() -> set[str]:
    """The names of all metrics of a gateway and of a router that have just started."""
    streams: Any = SimpleNamespace(queued={})
    gateway = GatewayCollector(
        Fleet([]), streams, RequestStatistics(), HttpStatistics(), ApiKeys(()), MemoryGuard(), RealtimeSessions()
    )
    router = Router(RouterOptions(), GrpcServerOptions(port=0), RpcSecurityOptions())
    try:
        return names_of(gateway.collect()) | names_of(router.metrics.collect())
    finally:
        await router.close()


async def test_all_metrics_exist(exported: set[str]) -> None:
    known = exported | GIVEN | set(rules("record"))
    used = {query: metrics_in(query) for query in queries()}
    assert all(used.values())
    assert {query: unknown for query, found in used.items() if (unknown := found - known)} == {}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('sum by (le) (rate(a_bucket{x="not_me"}[5m])) / on (m) b > 0.02', {"a_bucket", "b"}),
        ('deriv(sum(a)[10m:30s]) > 0 and up{job="c"} == 0', {"a", "up"}),
        ("label:a:sum + max(b)", {"label:a:sum", "b"}),
    ],
)
def test_metrics_are_found_in_queries(query: str, found: set[str]) -> None:
    assert metrics_in(query) == found


def test_alerts_say_what_is_wrong() -> None:
    alerts: list[Mapping[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")


def test_prometheus_scrapes_the_services_of_compose() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert [(FOLDER / name).name for name in configuration["rule_files"]] == ["rules.yml"]
    services = yaml.safe_load((ROOT.parent / "compose.yaml").read_text())["services"]
    assert services["prometheus"]["volumes"][0].split(":")[0] == "./deploy/observability"
    scraped = {
        name: (job["job_name"], each["port"])
        for job in configuration["scrape_configs"] for each in job["dns_sd_configs"] for name in each["names"]
    }  # fmt: skip
    assert scraped == {"gateway": ("quire-gateway", 8000), "router": ("quire-router", 9464)}
    command = services["router"]["command"]
    assert command[command.index("--metrics-port") + 1] == "9464"


def test_panels_have_places_of_their_own() -> None:
    taken = {
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }  # fmt: skip
    areas = [panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in DASHBOARD["panels"]]
    assert len(taken) == sum(areas)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(areas)
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
