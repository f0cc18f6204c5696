"""Options of the router."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class RouterOptions:
    """Where the workers are and how requests are placed on them."""

    workers: tuple[str, ...] = option((), "Engine workers (host:port), repeatable.")
    worker_dns: tuple[str, ...] = option(
        (), "Name and port (host:port); every A and AAAA record of the name is a worker. Repeatable; for compose "
        "--scale and headless services.",
    )  # fmt: skip
    worker_dns_interval_seconds: float = option(3.0, "Time between two look-ups of those names.", minimum=0.1)
    worker_lease_seconds: float = option(
        10.0, "Workers that register themselves are dropped after this long without a heartbeat.", minimum=0.5
    )
    routing_policy: str = option(
        "least_loaded", "How a worker is picked: least_loaded, power_of_two, random or round_robin."
    )
    max_inflight_requests: int = option(
        4096, "Requests running over all workers; more are refused as overload.", minimum=1
    )
