"""Elastic scaling: adds or removes data-parallel ranks while the stack serves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Collection, Mapping

import grpc

from quire.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    QuireError,
    StartupError,
    Unavailable,
)
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.rpc.status import from_rpc_error
from quire.serve.data_parallel import Balancing
from quire.serve.layout import Layout, StackOptions
from quire.serve.ports import LOOPBACK, HeldPorts
from quire.serve.processes import process_specs
from quire.serve.supervisor import ProcessSpec, Supervisor
from quire.supervision import ScaleAnswer, ScaleRequest
from quire.v1 import router_pb2, router_pb2_grpc

logger = logging.getLogger(__name__)

_MOST = 64
_HURRY_SECONDS = 1.0


class ElasticStack:
    """Changes the number of ranks, one change at a time."""

    def __init__(self, options: StackOptions, layout: Layout, ports: HeldPorts, supervisor: Supervisor) -> None:
        self._options = options
        self._layout = layout
        self._ports = ports
        self._supervisor = supervisor
        self._changing = asyncio.Lock()

    async def answer(self, request: ScaleRequest) -> ScaleAnswer:
        """Answers a request of a process of the stack.

        Raises:
            QuireError: see `scale`.
        """
        if request.data_parallel_size is not None:
            await self.scale(request.data_parallel_size, request.drain_seconds, request.seconds)
        return ScaleAnswer(self._layout.ranks.size, self._changing.locked())

    async def scale(self, size: int, drain_seconds: float, seconds: float) -> None:
        """Starts or ends engines until there are `size`, and returns once the new ones serve or the old ones are gone.

        Ranks of a model without experts are independent, and the remaining ones keep serving. Requests on removed ranks
        have `drain_seconds` to finish; after that they continue elsewhere, from their last token. Ranks that step in
        lockstep have their number built into every layer: all of them restart, and their requests wait in the router
        until then.

        Raises:
            FailedPrecondition: this stack does not control its ranks itself.
            InvalidRequest: this number of ranks is impossible.
            DeadlineExceeded: new ranks were not ready in time; the old ones keep serving, or start again.
            Unavailable: a change is under way already, or a new rank cannot start.
        """
        if self._changing.locked():
            raise Unavailable("The number of ranks is already being changed; try again when that is done.")
        async with self._changing:
            self._check(size)
            options, layout = self._changed(size)
            if layout.engines != self._layout.engines:
                specs = self._specs(options, layout)
                change = self._rebuild if await self._steps_together() else self._extend
                await change(specs, layout, drain_seconds, seconds)
                self._options, self._layout = options, layout
                logger.info("now running %d data-parallel ranks", size)

    def _check(self, size: int) -> None:
        ranks = self._layout.ranks
        if "router" not in self._layout.own or ranks.balancing is not Balancing.INTERNAL:
            raise FailedPrecondition("This stack does not control its own ranks: scale them where they are balanced.")
        if self._options.engine.parallel.nodes.nnodes > 1:
            raise FailedPrecondition("The engine's ranks are on several nodes (--nnodes): there can be only this one.")
        if ranks.elsewhere:
            raise FailedPrecondition(
                "Other nodes have ranks of this deployment: start or stop `quire serve --headless` there instead."
            )
        if not 1 <= size <= _MOST:
            raise InvalidRequest(
                f"new_data_parallel_size must be 1 to {_MOST}, not {size}.", parameter="new_data_parallel_size"
            )

    def _changed(self, size: int) -> tuple[StackOptions, Layout]:
        """Options and layout for ranks 0 to `size` - 1; remaining ranks keep their names, new ones get free ports."""
        old = self._layout
        engines = {name: rank for name, rank in old.engines.items() if rank < size}
        engines |= {f"engine-{rank}": rank for rank in range(len(engines), size)}
        gone, new = old.engines.keys() - engines.keys(), [name for name in engines if name not in old.engines]
        own = {name: address for name, address in old.own.items() if name not in gone}
        own |= {name: f"{LOOPBACK}:{port}" for name, port in zip(new, self._ports.hold_free(len(new)), strict=True)}
        metrics = old.metrics | dict(zip(new, self._ports.hold_free(len(new)), strict=True))
        layout = dataclasses.replace(
            old, own=own, metrics=metrics, engines=engines,
            ranks=dataclasses.replace(old.ranks, size=size, ranks=range(size)),
            meeting_port=old.meeting_port or self._ports.hold_free(1)[0],
        )  # fmt: skip
        parallel = dataclasses.replace(self._options.engine.parallel, data_parallel_size=size)
        engine = dataclasses.replace(self._options.engine, parallel=parallel)
        return dataclasses.replace(self._options, engine=engine), layout

    def _specs(self, options: StackOptions, layout: Layout) -> Mapping[str, ProcessSpec]:
        try:
            return {spec.name: spec for spec in process_specs(options, layout)}
        except StartupError as error:  # there are too few GPUs
            raise InvalidRequest(str(error), parameter="new_data_parallel_size") from error

    async def _extend(
        self, specs: Mapping[str, ProcessSpec], layout: Layout, drain_seconds: float, seconds: float
    ) -> None:
        """Adds or removes independent ranks; the remaining ones are unaffected."""
        new = [specs[name] for name in layout.engines if name not in self._layout.engines]
        gone = self._layout.engines.keys() - layout.engines.keys()
        await self._start(new, seconds)
        try:
            await self._tell_router(layout)
        except BaseException:
            await self._supervisor.end([spec.name for spec in new], 0.0)
            raise
        self._supervisor.update(specs.values())  # used when one is restarted
        await self._supervisor.end(gone, drain_seconds)

    async def _rebuild(
        self, specs: Mapping[str, ProcessSpec], layout: Layout, drain_seconds: float, seconds: float
    ) -> None:
        """Replaces all ranks; none serves until all do. If the new ones cannot start, the old ones are started
        again."""
        await self._tell_router(layout)
        await self._supervisor.end(self._layout.engines.keys(), min(drain_seconds, _HURRY_SECONDS))
        self._supervisor.update(specs.values())
        try:
            await self._start([specs[name] for name in layout.engines], seconds)
        except QuireError:
            await self._restore()
            raise

    async def _restore(self) -> None:
        specs = self._specs(self._options, self._layout)
        self._supervisor.update(specs.values())
        self._supervisor.start([specs[name] for name in self._layout.engines])
        await self._tell_router(self._layout)

    async def _start(self, specs: Collection[ProcessSpec], seconds: float) -> None:
        """Starts engines; if one is not ready in time, or fails, ends all of them."""
        names = [spec.name for spec in specs]
        self._supervisor.start(specs)
        try:
            async with asyncio.timeout(seconds):
                await self._supervisor.until_ready(names)
        except TimeoutError as error:
            await self._supervisor.end(names, 0.0)
            raise DeadlineExceeded(f"{', '.join(names)} did not become ready within {seconds:g} s.") from error
        except StartupError as error:
            await self._supervisor.end(names, 0.0)
            raise Unavailable(f"A new rank cannot start: {error}") from error

    async def _steps_together(self) -> bool:
        """Whether the ranks step in lockstep; also true of a single rank that would once it has peers."""
        async with self._router() as router:
            answer = await router.ListWorkers(
                router_pb2.ListWorkersRequest(), metadata=call_metadata(self._options.security), timeout=CALL_SECONDS,
                wait_for_ready=True,
            )  # fmt: skip
        return any(worker.model_info.lockstep_ranks for worker in answer.workers)

    async def _tell_router(self, layout: Layout) -> None:
        """Sets the router's workers; those left out get no new requests, and finish the ones they have."""
        addresses = [*self._options.router.workers, *layout.workers]
        async with self._router() as router:
            await router.SetWorkers(
                router_pb2.SetWorkersRequest(addresses=addresses), metadata=call_metadata(self._options.security),
                timeout=CALL_SECONDS, wait_for_ready=True,
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _router(self) -> AsyncIterator[router_pb2_grpc.RouterServiceStub]:
        """Opens a client of the router.

        Raises:
            QuireError: the router does not answer.
        """
        async with open_channel(self._layout.router[0], self._options.security) as channel:
            try:
                yield router_pb2_grpc.RouterServiceStub(channel)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
