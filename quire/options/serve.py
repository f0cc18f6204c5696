"""Options of `quire serve`, which starts the whole stack as local processes."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class ServeOptions:
    """The local stack."""

    engines: int = option(1, "Engine workers to start, each with its own copy of the model.", minimum=1, maximum=64)
    router_port: int = option(0, "Port of the router's gRPC service; 0 takes a free one.", minimum=0, maximum=65535)
    startup_timeout_seconds: float = option(1800.0, "Time for the whole stack to become ready.", minimum=1.0)
