"""Options of the admin port."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import option
from quire.options.server import LOOPBACK


@dataclass(frozen=True)
class AdminOptions:
    """What operators ask for, on a port of its own."""

    group: ClassVar[str] = "Frontend"

    admin_port: int = option(
        0, "Port for operators, with routes that pause, put to sleep, drain, reset and profile the engines; 0 turns it "
        "off. No client should reach it.", minimum=0, maximum=65535,
    )  # fmt: skip
    admin_host: str = option("127.0.0.1", "Address that it listens on.")
    admin_api_key: tuple[str, ...] = option(
        (), "Key that every request there must bring, which is none of --api-key; several may be given. With HTTPS "
        "options it speaks HTTPS, too.", secret=True,
    )  # fmt: skip

    def check(self, port: int, api_keys: Collection[str], *, insecure: bool) -> None:
        """Checks that the admin port is protected from clients and from other machines.

        Args:
            port, api_keys: the clients' port and keys.

        Raises:
            StartupError: anyone, or any client, could use it.
        """
        if not self.admin_port:
            return
        if self.admin_port == port:
            raise StartupError(f"--admin-port {port} is the clients' port as well (--port); give it one of its own.")
        if set(self.admin_api_key) & set(api_keys):
            raise StartupError("A key of --admin-api-key is one of --api-key, too: give operators one of their own.")
        if self.admin_host not in LOOPBACK and not self.admin_api_key and not insecure:
            raise StartupError(
                f"--admin-host {self.admin_host} is reachable from other machines and no --admin-api-key is set. Set "
                "one (or QUIRE_ADMIN_API_KEY), or pass --insecure if something in front protects it."
            )
