"""Options of the admin port."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import ANY_WORD, option
from quire.options.server import LOOPBACK


@dataclass(frozen=True)
class AdminOptions:
    """Admin port for operators."""

    group: ClassVar[str] = "Frontend"

    admin_port: int = option(
        0, "Port for operators, with routes that pause, sleep, drain, reset and profile the engines; 0 turns it off. "
        "Clients must not be able to reach it.", minimum=0, maximum=65535,
    )  # fmt: skip
    admin_host: str = option("127.0.0.1", "Address that the admin port listens on.")
    admin_api_key: tuple[str, ...] = option(
        (), "Key that every request to the admin port must bring; must differ from every --api-key. Can be repeated. "
        "With HTTPS options, the admin port uses HTTPS too.", secret=True,
    )  # fmt: skip

    admin_allowed_hosts: tuple[str, ...] = option(
        (), "Names by which the admin routes may be called without a key, such as that of a Kubernetes service; "
        "addresses and localhost always may. Takes several words.", metavar="HOST", following=ANY_WORD,
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
            raise StartupError(f"--admin-port {port} is also the clients' port (--port). Choose another port.")
        if set(self.admin_api_key) & set(api_keys):
            raise StartupError("A key of --admin-api-key is also one of --api-key. Give operators a key of their own.")
        if self.admin_host not in LOOPBACK and not self.admin_api_key and not insecure:
            raise StartupError(
                f"--admin-host {self.admin_host} is reachable from other machines and no --admin-api-key is set. Set "
                "one (or QUIRE_ADMIN_API_KEY), or pass --insecure if something in front protects it."
            )
