"""The fleet of workers: where they come from, and the pulse that the gateways get from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from quire.fleet_counters import FleetCounters
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import common_pb2, router_pb2
from router.requests.sessions import CallerSession
from router.workers.leases import Leases
from router.workers.registry import WorkerRegistry

_REGISTRATIONS = "registration"
_GAUGES = (
    "running_sequences", "waiting_requests", "used_kv_blocks", "total_kv_blocks", "waiting_prefill_tokens",
    "swapped_sequences", "used_host_blocks", "total_host_blocks", "step",
)  # fmt: skip


class Fleet:
    """Ties leases and registry together and sums up the load."""

    def __init__(self, registry: WorkerRegistry, leases: Leases, waiting: Callable[[], Mapping[str, int]]) -> None:
        """
        Args:
            waiting: the requests that wait in this router now, by model.
        """
        self.registry = registry
        self.leases = leases
        # Load and queues as of the last beat.
        self.pulse = router_pb2.RouterServiceSessionResponse(load=common_pb2.EngineLoad())
        self._waiting = waiting
        self._counters = FleetCounters()

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
            queues = [router_pb2.ModelQueue(model=model, requests=n) for model, n in self._waiting().items()]
            self.pulse = router_pb2.RouterServiceSessionResponse(load=self._sum_load(), queues=queues)
            for session in sessions:
                session.heartbeat(self.pulse)
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


def add_gauges(total: common_pb2.EngineLoad, load: common_pb2.EngineLoad) -> None:
    """total += load, for all but the counters."""
    for name in _GAUGES:
        setattr(total, name, getattr(total, name) + getattr(load, name))
    total.busy = total.busy or load.busy
