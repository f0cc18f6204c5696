"""The fleet of workers: where they come from, and the pulse that the gateways get from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import common_pb2
from router.fleet_load import FleetCounters, add_gauges
from router.leases import Leases
from router.registry import WorkerRegistry
from router.sessions import CallerSession

_REGISTRATIONS = "registration"


class Fleet:
    """Ties leases and registry together and sums up the load."""

    def __init__(self, registry: WorkerRegistry, leases: Leases, counters: FleetCounters) -> None:
        self.registry = registry
        self.leases = leases
        # As of the last beat.
        self.load = common_pb2.EngineLoad()
        self._counters = counters

    @property
    def lease_ms(self) -> int:
        """Length of a lease."""
        return round(self.leases.seconds * 1000)

    def register(self, address: str) -> str:
        """Makes a worker known that announced itself; returns its lease.

        Raises:
            Overloaded: there are too many workers.
        """
        self.registry.announce(_REGISTRATIONS, self.leases.addresses() | {address})
        return self.leases.grant(address)

    async def beat(self, sessions: Iterable[CallerSession]) -> None:
        """Every HEARTBEAT_SECONDS until cancelled: drops ended leases, sends the load to the open `sessions`."""
        while True:
            self.registry.announce(_REGISTRATIONS, self.leases.addresses())
            self.load = self._sum_load()
            for session in sessions:
                session.heartbeat(self.load)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _sum_load(self) -> common_pb2.EngineLoad:
        total = common_pb2.EngineLoad()
        for worker in self.registry.workers:
            load = worker.load.last
            if load is None:
                continue
            self._counters.take(worker.address, load.counters)
            if worker.ready:
                add_gauges(total, load)
        total.counters.CopyFrom(self._counters.total)
        return total
