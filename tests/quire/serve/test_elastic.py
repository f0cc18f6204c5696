"""What is left of a change of the number of ranks that fails; what one does is in tests/integration/test_elastic.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

import grpc
import pytest

from quire.errors import QuireError
from quire.serve.elastic import ElasticStack
from quire.serve.layout import choose_layout
from quire.serve.ports import HeldPorts
from quire.serve.supervisor import ProcessSpec, Supervisor
from quire.v1 import router_pb2, router_pb2_grpc
from tests.quire.serve.test_layout import stack_options


class ForgetfulRouter(router_pb2_grpc.RouterServiceServicer):
    """Knows no workers, and wants to know none."""

    async def ListWorkers(
        self, request: router_pb2.ListWorkersRequest, context: object
    ) -> router_pb2.ListWorkersResponse:
        return router_pb2.ListWorkersResponse()

    async def SetWorkers(
        self, request: router_pb2.SetWorkersRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> router_pb2.SetWorkersResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "it is about to end")


class Processes:
    """Of a supervisor that starts none."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def start(self, specs: Collection[ProcessSpec]) -> None:
        self.running |= {spec.name for spec in specs}

    async def until_ready(self, names: Sequence[str]) -> None:
        assert self.running.issuperset(names)

    async def end(self, names: Iterable[str], timeout: float) -> None:
        self.running -= set(names)


async def test_engines_that_the_router_does_not_hear_of_are_ended() -> None:
    options, processes, server = stack_options(1), Processes(), grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    router_pb2_grpc.add_RouterServiceServicer_to_server(ForgetfulRouter(), server)
    with HeldPorts() as ports:
        layout = choose_layout(options, ports)
        server.add_insecure_port(layout.router[0])
        await server.start()
        stack = ElasticStack(options, layout, ports, cast("Supervisor", processes))
        try:
            with pytest.raises(QuireError, match="it is about to end"):
                await stack.scale(3, 1.0, 60.0)
            assert not processes.running
        finally:
            await server.stop(None)
