"""Options for registering with routers."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class RegistrationOptions:
    """Registration with routers."""

    register_with: tuple[str, ...] = option(
        (), "Routers to register with (host:port); every address behind a DNS name is one. Default: none; the router "
        "finds its workers by itself."
    )  # fmt: skip
    advertise_address: str | None = option(
        None, "host:port at which routers reach this worker. Default: the address that it listens on; if that is all "
        "interfaces, the address of the interface towards the router or, with TLS, the machine's name."
    )  # fmt: skip
