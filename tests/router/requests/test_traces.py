"""What a router's trace of a request contains."""

from __future__ import annotations

import asyncio

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from router.app import Router
from tests.support.router_client import connect, generation
from tests.support.traces import MemoryTracer
from tests.support.waiting import eventually


async def test_one_that_its_caller_leaves_in_the_queue_has_waited_there() -> None:
    tracer = MemoryTracer()
    router = Router(RouterOptions(), GrpcServerOptions(), RpcSecurityOptions(), tracer=tracer)
    await router.start()
    async with connect(router.server.port) as client, client.session() as session:
        await session.start(1, generation([65]))
        await eventually(lambda: router.dispatcher.waiting.waiting == 1, "it does not wait")
        await asyncio.sleep(0.05)
        await session.abort(1)
        await eventually(lambda: tracer.ended() == ["route"], "its span stays open")
    await router.close()
    (span,) = tracer.spans()
    assert span.attributes["quire.outcome"] == "aborted"
    assert span.attributes["gen_ai.latency.time_in_queue"] >= 0.05
