"""Options of the router."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

ROUTING_POLICIES = ("prefix", "least_loaded", "power_of_two", "round_robin", "random", "consistent_hash")


@dataclass(frozen=True)
class PlacementCostOptions:
    """What counts when the prefix policy compares workers."""

    host_tier_weight: float = option(
        0.25, "prefix policy: share of a prompt token's prefill time that one cached in host memory still takes.",
        minimum=0, maximum=1,
    )  # fmt: skip
    interference_weight: float = option(
        0.1, "prefix policy: seconds that count for each second in which a request slows others down.", minimum=0
    )
    routing_temperature: float = option(
        0.0, "prefix policy: costs that exceed the least by less than this share of it are as good.", minimum=0
    )
    adapter_seconds: float = option(
        0.1, "prefix policy: what a request costs more at a worker that has its adapter not on the device.", minimum=0
    )


@dataclass(frozen=True)
class RouterOptions:
    """Where the workers are and how requests are placed on them."""

    workers: tuple[str, ...] = option((), "Engine workers (host:port), repeatable.")
    worker_dns: tuple[str, ...] = option(
        (), "Name and port (host:port); every A record of the name is a worker, or every AAAA record where there is "
        "no other. One that three answers in a row lack is gone. Repeatable; for compose --scale, headless services.",
    )  # fmt: skip
    worker_dns_interval_seconds: float = option(3.0, "Time between two look-ups of those names.", minimum=0.1)
    worker_lease_seconds: float = option(
        10.0, "Workers that register themselves are dropped after this long without a heartbeat.", minimum=0.5
    )
    routing_policy: str = option("prefix", "How a worker is picked.", choices=ROUTING_POLICIES)
    placement_cost: PlacementCostOptions = PlacementCostOptions()
    max_index_blocks: int = option(
        4_000_000, "KV blocks that the prefix index knows of, at about 100 bytes each. Beyond, it keeps every second "
        "block, then every fourth, and so on: matches are then known to within so many blocks.", minimum=1024,
    )  # fmt: skip
    model_alias: tuple[str, ...] = option(
        (), "Further name of a model (NAME=MODEL), or of several with their shares (NAME=MODEL:9,OTHER:1). A "
        "conversation stays with one of them. Repeatable.",
    )  # fmt: skip
    max_inflight_requests: int = option(
        4096, "Requests running over all workers; more are refused as overload.", minimum=1
    )
    max_queued_requests: int = option(
        2048, "Requests that wait while all workers are full, for each model; more are refused as overload.", minimum=0
    )
    max_queued_tokens: int = option(8_000_000, "Prompt tokens of those.", minimum=0)
    max_queue_seconds: float = option(60.0, "Longest wait of a request for a worker.", minimum=0)
    max_absence_seconds: float = option(
        60.0, "Where no worker of a model has been ready for longer than this and none is loading, new requests are "
        "refused at once instead of waiting for one.", minimum=0,
    )  # fmt: skip
