"""Options of the router."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

ROUTING_POLICIES = ("prefix", "least_loaded", "power_of_two", "round_robin", "random", "consistent_hash")


@dataclass(frozen=True)
class PlacementCostOptions:
    """Costs in the prefix routing policy."""

    host_tier_weight: float = option(
        0.25, "prefix policy: cost of a prompt token that is cached in host memory, as a fraction of the cost of "
        "computing it.",
        minimum=0, maximum=1,
    )  # fmt: skip
    interference_weight: float = option(
        0.1, "prefix policy: cost in seconds of each second by which a request slows others down.", minimum=0
    )
    routing_temperature: float = option(
        0.0,
        "prefix policy: workers whose cost exceeds the lowest by less than this fraction of it count as equally good.",
        minimum=0,
    )
    adapter_seconds: float = option(
        0.1,
        "prefix policy: additional cost in seconds at a worker that does not have the request's adapter on its device.",
        minimum=0,
    )


@dataclass(frozen=True)
class RouterOptions:
    """Routing."""

    workers: tuple[str, ...] = option((), "Engine workers (host:port). Repeatable.")
    worker_dns: tuple[str, ...] = option(
        (), "DNS name and port (host:port) of workers: every A record of the name is a worker, or every AAAA record if "
        "there are no A records. A worker missing from three answers in a row is removed. Repeatable; for compose "
        "--scale and headless services.",
    )  # fmt: skip
    worker_dns_interval_seconds: float = option(3.0, "Time between two DNS lookups of --worker-dns.", minimum=0.1)
    worker_lease_seconds: float = option(
        10.0, "Workers that registered themselves are removed after this long without a heartbeat.", minimum=0.5
    )
    routing_policy: str = option("prefix", "How the worker for a request is chosen.", choices=ROUTING_POLICIES)
    prefill_worker_min_tokens: int = option(
        256, "If workers with kv_role kv_producer (--kv-transfer-config) save KV blocks that others load: a prompt of "
        "which each of those others would have to compute this many tokens or more is computed by a producer first, "
        "and continues at one of the others.", minimum=1,
    )  # fmt: skip
    placement_cost: PlacementCostOptions = PlacementCostOptions()
    max_index_blocks: int = option(
        4_000_000, "Maximum number of KV blocks in the prefix index, at about 100 bytes each. Beyond that, it keeps "
        "only every second block, then every fourth, and so on, and matches are accurate only to that many blocks.",
        minimum=1024,
    )  # fmt: skip
    model_alias: tuple[str, ...] = option(
        (), "Additional name of a model (NAME=MODEL), or of several with their shares of the requests "
        "(NAME=MODEL:9,OTHER:1). A conversation stays with one of them. Repeatable.",
    )  # fmt: skip
    max_inflight_requests: int = option(
        4096, "Maximum number of requests running on all workers; further ones are refused as overload.", minimum=1
    )
    max_queued_requests: int = option(
        2048,
        "Maximum number of requests per model that wait while all workers are full; further ones are refused as "
        "overload.",
        minimum=0,
    )
    max_queued_tokens: int = option(8_000_000, "Maximum number of prompt tokens of waiting requests.", minimum=0)
    max_queue_seconds: float = option(60.0, "Maximum time that a request waits for a worker.", minimum=0)
    max_absence_seconds: float = option(
        60.0, "If no worker of a model has been ready for longer than this and none is loading, new requests are "
        "refused at once instead of waiting.", minimum=0,
    )  # fmt: skip
    record_requests: str | None = option(
        None, "File to which a line is written for each request that has ended: when it came, how long it was, hashes "
        "of its prompt's blocks and what became of it, but no text, to replay the load in a simulation "
        "(docs/routing.md). When it has 256 MiB, it becomes FILE.1, in place of the one before.", metavar="FILE",
    )  # fmt: skip
    autoscaling_target_utilization: float = option(
        0.7, "Share of its capacity to which each worker would be used if there were as many as the metric "
        "quire_router_wanted_workers says (docs/observability.md).", minimum=0.05, maximum=1,
    )  # fmt: skip
