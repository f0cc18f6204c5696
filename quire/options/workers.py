"""Options of `quire workers`, which shows what a router knows."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class WorkersOptions:
    """Router queries."""

    router_address: str = option("127.0.0.1:50051", "Address of the router (host:port).")
    watch: float | None = option(
        None, "Refreshes the output at this interval until Ctrl-C.", metavar="SECONDS", minimum=0.1
    )
    json: bool = option(False, "Prints the router's answer as one line of JSON, including what the table leaves out.")
    explain: str | None = option(
        None, "Shows why this request was placed where it was, instead of the fleet. Accepts the id of an API answer.",
        metavar="REQUEST_ID",
    )  # fmt: skip
    host_tier: float | None = option(
        None, "With --explain: shows what the prefix policy would have chosen with this --host-tier-weight.",
        minimum=0, maximum=1,
    )  # fmt: skip
    interference: float | None = option(None, "With --explain: the same for --interference-weight.", minimum=0)
    temperature: float | None = option(None, "With --explain: the same for --routing-temperature.", minimum=0)
