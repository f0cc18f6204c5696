"""Where workers come from beside DNS and the static list: they register themselves, and keep a lease."""

from __future__ import annotations

from router.workers.leases import Leases
from router.workers.registry import WorkerRegistry

_REGISTRATIONS = "registration"


class Registrations:
    """Announces to the registry the workers whose lease runs."""

    def __init__(self, registry: WorkerRegistry, leases: Leases) -> None:
        self._registry = registry
        self._leases = leases

    @property
    def lease_ms(self) -> int:
        """Length of a lease."""
        return round(self._leases.seconds * 1000)

    def register(self, address: str) -> str:
        """Makes a worker known that announced itself; returns the id of its lease.

        Raises:
            Overloaded: there are too many workers.
        """
        self._registry.announce(_REGISTRATIONS, self._leases.addresses() | {address})
        return self._leases.grant(address)

    def renew(self, lease_id: str) -> None:
        """
        Raises:
            NotFound: the lease has ended or never was; the worker has to register again.
        """
        self._leases.renew(lease_id)

    def expire(self) -> None:
        """Drops the workers whose lease has ended. Call it a few times a second."""
        self._registry.announce(_REGISTRATIONS, self._leases.addresses())
