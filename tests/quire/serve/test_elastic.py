"""What a failed change of the number of ranks leaves; tests/integration/test_elastic.py has successful ones."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import grpc
import pytest

from quire.errors import FailedPrecondition, QuireError, StartupError, Unavailable
from quire.options.nodes import NodeOptions
from quire.options.parallel import ParallelOptions
from quire.serve.elastic import ElasticStack
from quire.serve.layout import Layout, choose_layout
from quire.serve.ports import HeldPorts
from quire.serve.supervisor import ProcessSpec, Supervisor
from quire.v1 import common_pb2, router_pb2, router_pb2_grpc
from tests.quire.serve.test_layout import stack_options


class ForgetfulRouter(router_pb2_grpc.RouterServiceServicer):
    """Knows no workers, and refuses to be told of any."""

    async def ListWorkers(
        self, request: router_pb2.ListWorkersRequest, context: object
    ) -> router_pb2.ListWorkersResponse:
        return router_pb2.ListWorkersResponse()

    async def SetWorkers(
        self, request: router_pb2.SetWorkersRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> router_pb2.SetWorkersResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "it is about to end")


class SharingRouter(router_pb2_grpc.RouterServiceServicer):
    """Reports a worker that shares experts among `ranks` ranks, and accepts any worker list."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self.workers = ranks, list[str]()

    async def ListWorkers(
        self, request: router_pb2.ListWorkersRequest, context: object
    ) -> router_pb2.ListWorkersResponse:
        info = common_pb2.ModelInfo(lockstep_ranks=self._ranks)
        return router_pb2.ListWorkersResponse(workers=[router_pb2.Worker(model_info=info)])

    async def SetWorkers(self, request: router_pb2.SetWorkersRequest, context: object) -> router_pb2.SetWorkersResponse:
        self.workers = list(request.addresses)
        return router_pb2.SetWorkersResponse()


class Processes:
    """Stands in for a supervisor, without starting processes."""

    def __init__(self, *, fails: bool = False) -> None:
        self.running: set[str] = set()
        self.known: dict[str, ProcessSpec] = {}
        self.fails = fails

    def start(self, specs: Collection[ProcessSpec]) -> None:
        self.running |= {spec.name for spec in specs}

    def update(self, specs: Iterable[ProcessSpec]) -> None:
        self.known = {spec.name: spec for spec in specs}

    async def until_ready(self, names: Sequence[str]) -> None:
        assert self.running.issuperset(names)
        if self.fails:
            raise StartupError("no room for the weights")

    async def end(self, names: Iterable[str], timeout: float) -> None:
        self.running -= set(names)


@asynccontextmanager
async def elastic_stack(
    size: int, router: router_pb2_grpc.RouterServiceServicer, processes: Processes
) -> AsyncIterator[tuple[ElasticStack, Layout]]:
    """A stack of `size` ranks that are running."""
    options, server = stack_options(size), grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    router_pb2_grpc.add_RouterServiceServicer_to_server(router, server)
    with HeldPorts() as ports:
        layout = choose_layout(options, ports)
        server.add_insecure_port(layout.router[0])
        await server.start()
        try:
            yield ElasticStack(options, layout, ports, cast("Supervisor", processes)), layout
        finally:
            await server.stop(None)


async def test_engines_that_the_router_does_not_hear_of_are_ended() -> None:
    processes = Processes()
    async with elastic_stack(1, ForgetfulRouter(), processes) as (stack, _):
        with pytest.raises(QuireError, match="it is about to end"):
            await stack.scale(3, 1.0, 60.0)
    assert not processes.running


async def test_an_engine_of_several_nodes_stays_the_only_one() -> None:
    options = stack_options()
    parallel = ParallelOptions(tensor_parallel_size=2, nodes=NodeOptions(2, 0, "127.0.0.1"))
    options = dataclasses.replace(options, engine=dataclasses.replace(options.engine, parallel=parallel))
    with HeldPorts() as ports:
        stack = ElasticStack(options, choose_layout(options, ports), ports, cast("Supervisor", Processes()))
        with pytest.raises(FailedPrecondition, match="ranks are on several nodes"):
            await stack.scale(2, 1.0, 60.0)


@pytest.mark.parametrize("size", [1, 2])
async def test_ranks_that_share_experts_are_those_before_where_there_cannot_be_more(size: int) -> None:
    processes, router = Processes(fails=True), SharingRouter(size)
    async with elastic_stack(size, router, processes) as (stack, layout):
        with pytest.raises(Unavailable, match="no room for the weights"):
            await stack.scale(3, 1.0, 60.0)
        assert processes.running == layout.engines.keys()
        assert router.workers == [layout.own[name] for name in layout.engines]
        assert not any("3" in processes.known[name].command for name in layout.engines)
        processes.fails = False
        await stack.scale(3, 1.0, 60.0)
        assert len(processes.running) == len(router.workers) == 3
