"""Options for registering with routers."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class RegistrationOptions:
    """Whom a worker tells where it is."""

    register_with: tuple[str, ...] = option(
        (), "Routers to register with (host:port). Default: none; the router finds its workers."
    )
    advertise_address: str | None = option(
        None, "host:port under which routers reach this worker. Default: where it listens; of all interfaces the one "
        "towards the router, or with TLS the machine's name."
    )  # fmt: skip
