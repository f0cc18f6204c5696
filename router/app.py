"""Assembles all parts of a router."""

from __future__ import annotations

import asyncio
import logging
import random

from quire.metrics import new_registry
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.discovery import DnsSource, Resolver, resolve_host
from quire.rpc.server import GrpcServer
from quire.tracing.base import Tracer
from quire.v1 import admin_pb2, admin_pb2_grpc, router_pb2, router_pb2_grpc
from router.adapters import FleetAdapters
from router.administration import RouterAdminServicer
from router.collector import StateCollector
from router.core import RouterCore
from router.heartbeat import Heartbeat
from router.index.feed import KvFeed
from router.metrics import RouterMetrics
from router.service import RouterServicer
from router.workers.leases import Leases
from router.workers.registrations import Registrations
from router.workers.registry import STATIC_WORKERS, WorkerRegistry
from router.workers.remote import RemoteWorker

logger = logging.getLogger(__name__)

_SERVICE = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
_ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["RouterAdminService"].full_name


class Router:
    """The whole router as an object: construct, `start`, `serve_until_stopped` (or `close`)."""

    def __init__(
        self,
        options: RouterOptions,
        server: GrpcServerOptions,
        security: RpcSecurityOptions,
        resolve: Resolver = resolve_host,
        tracer: Tracer | None = None,
    ) -> None:
        """
        Raises:
            StartupError: an option is wrong.
        """
        self._security = security
        self._static_workers = options.workers
        self.metrics = new_registry()
        self._clock = asyncio.get_running_loop()
        self._counts = RouterMetrics(self.metrics)
        core = RouterCore(options, lambda: self.registry.workers, self._clock, self._counts, random.SystemRandom())
        self.core, self.index, self.table, self.dispatcher = core, core.index, core.table, core.dispatcher
        self.registry = WorkerRegistry(self._make_worker, core.on_beat)
        self._adapters = FleetAdapters(lambda: self.registry.workers, core.aliases.names)
        self._registrations = Registrations(self.registry, Leases(options.worker_lease_seconds))
        self._heartbeat = Heartbeat(self.dispatcher.sessions, lambda: self.registry.num_ready, core.waiting_by_model)
        self._dns = [
            DnsSource("--worker-dns", address, self.registry.announce, options.worker_dns_interval_seconds, resolve)
            for address in options.worker_dns
        ]
        self.metrics.register(
            StateCollector(
                lambda: self.registry.workers,
                lambda: len(self.dispatcher.sessions),
                (self.dispatcher.waiting, core.pooling.waiting),
                self.index,
                lambda: core.autoscaling.wanted,
                core.memory,
            )
        )
        self.server = GrpcServer("router", _SERVICE, server, security, self.metrics, (_ADMIN_SERVICE,), tracer)
        servicer = RouterServicer(
            self.dispatcher, self.registry, self._registrations, self._heartbeat, self.table.decisions, core.aliases,
            self._adapters, core.pooling, tracer,
        )  # fmt: skip
        router_pb2_grpc.add_RouterServiceServicer_to_server(servicer, self.server.server)
        administration = RouterAdminServicer(lambda: self.registry.workers)
        admin_pb2_grpc.add_RouterAdminServiceServicer_to_server(administration, self.server.server)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts listening, and starts looking for workers.

        Raises:
            StartupError: the port is taken.
        """
        await self.server.start()
        self.registry.announce(STATIC_WORKERS, self._static_workers)
        heartbeat = self._heartbeat.run(self._registrations.expire)
        jobs = (heartbeat, self._keep_house(), self.core.memory.run(), *(source.run() for source in self._dns))
        self._tasks = [asyncio.create_task(job) for job in jobs]
        for task in self._tasks:
            task.add_done_callback(self._check_task)
        await self.server.set_serving(True)
        logger.info("listening on port %d", self.server.port)

    async def serve_until_stopped(self) -> None:
        """Serves until a stop signal arrives, then lets running requests finish."""
        await self.server.serve_until_stopped(self.core.drain, self._heartbeat.drain)
        await self.close()

    async def close(self) -> None:
        """Stops at once."""
        await self.server.server.stop(grace=None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._adapters.close()
        await self.registry.close()
        if self.core.recorder is not None:
            await asyncio.to_thread(self.core.recorder.close)

    def _make_worker(self, address: str) -> RemoteWorker:
        feed = KvFeed(address, self.index, self._counts.out_of_step.inc)
        return RemoteWorker(
            address,
            self._security,
            feed,
            self.dispatcher.on_frame,
            self.core.on_lost,
            self.core.on_change,
            self._clock.time,
            self._adapters.welcome,
        )

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self.core.keep_house())

    def _check_task(self, task: asyncio.Task[None]) -> None:
        """Shuts the router down when a background task has failed, so that its supervisor starts it again. A router
        without its heartbeat is useless."""
        if not task.cancelled() and task.exception():
            logger.critical("a background task failed; shutting down", exc_info=task.exception())
            self.server.stop_soon()
