"""Options of `quire workers`, which shows what a router knows."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class WorkersOptions:
    """What to ask a router."""

    router_address: str = option("127.0.0.1:50051", "host:port of the router.")
    watch: float | None = option(
        None, "Shows it again every so many seconds, until Ctrl-C.", metavar="SECONDS", minimum=0.1
    )
    json: bool = option(False, "Prints the router's answer as one line of JSON, with all that the table leaves out.")
    explain: str | None = option(
        None, "Shows why this request was placed where it was, in place of the fleet. The id of an API answer will do.",
        metavar="REQUEST_ID",
    )  # fmt: skip
    host_tier: float | None = option(
        None, "With --explain: what the prefix policy would have chosen with this --host-tier-weight.",
        minimum=0, maximum=1,
    )  # fmt: skip
    interference: float | None = option(None, "The same for --interference-weight.", minimum=0)
    temperature: float | None = option(None, "The same for --routing-temperature.", minimum=0)
