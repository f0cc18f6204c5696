"""Workers that register themselves and keep a lease, in addition to those from DNS and the static list."""

from __future__ import annotations

from router.workers.leases import Leases
from router.workers.registry import WorkerRegistry

_REGISTRATIONS = "registration"


class Registrations:
    """Announces the workers with a running lease to the registry."""

    def __init__(self, registry: WorkerRegistry, leases: Leases) -> None:
        self._registry = registry
        self._leases = leases

    @property
    def lease_ms(self) -> int:
        """Length of a lease in milliseconds."""
        return round(self._leases.seconds * 1000)

    def register(self, address: str) -> str:
        """Adds a worker that announced itself; returns the id of its lease.

        Raises:
            Overloaded: there are too many workers.
        """
        self._registry.announce(_REGISTRATIONS, self._leases.addresses() | {address})
        return self._leases.grant(address)

    def renew(self, lease_id: str) -> None:
        """Extends a lease to its full length.

        Raises:
            NotFound: the lease has ended or never existed; the worker must register again.
        """
        self._leases.renew(lease_id)

    def expire(self) -> None:
        """Drops the workers whose leases have expired. Call it a few times a second."""
        self._registry.announce(_REGISTRATIONS, self._leases.addresses())
