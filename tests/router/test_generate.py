"""RouterService.Generate: one request for any gRPC client."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from quire.errors import Unavailable
from quire.prompt_embeds import MAX_PROMPT_EMBEDS_BYTES
from quire.rpc.context import REQUEST_ID_HEADER
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, router_pb2
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually


async def test_tokens_arrive_and_the_call_ends(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    assert await running.client.generate(generation([3, 4], 20)) == expected_tokens([3, 4], 20)


async def test_deltas_carry_choice_usage_and_stream_zero(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    request = router_pb2.RouterServiceGenerateRequest(generation=generation([5], 3, n=2))
    deltas = [answer.delta async for answer in running.client.stub.Generate(request, timeout=WAIT_SECONDS)]
    for choice in range(2):
        tokens = [token for delta in deltas if delta.choice_index == choice for token in delta.token_ids]
        assert tokens == expected_tokens([5], 3, choice)
    assert {delta.stream_id for delta in deltas} == {0}
    assert [delta.is_final for delta in deltas] == [False] * 5 + [True]
    assert deltas[-1].usage.completion_tokens == 6


async def test_cancelling_the_call_aborts_the_request(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    call = running.client.stub.Generate(
        router_pb2.RouterServiceGenerateRequest(generation=generation([1], request_id="goes-away"))
    )
    await call.read()
    call.cancel()
    await eventually(lambda: engine.record.aborted == ["goes-away"])
    assert not engine.live


async def test_the_callers_deadline_aborts_the_request(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True)
    running = await start_router(engine.address)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await running.client.generate(generation([1], request_id="late"), timeout=1.5)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: engine.record.aborted == ["late"])


async def test_an_error_of_the_worker_becomes_the_status(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(start_error=Unavailable("It is Sunday.", reason="SUNDAY", parameter="day"))
    running = await start_router(engine.address)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await running.client.generate(generation([1], 1))
    error = from_rpc_error(failure.value)
    assert isinstance(error, Unavailable)
    assert (error.message, error.reason, error.parameter) == ("It is Sunday.", "SUNDAY", "day")


async def test_a_request_id_reaches_the_worker(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    call = running.client.stub.Generate(
        router_pb2.RouterServiceGenerateRequest(generation=generation([1], 1)),
        metadata=((REQUEST_ID_HEADER, "my-request"),), timeout=WAIT_SECONDS,
    )  # fmt: skip
    async for _ in call:
        pass
    assert dict(await call.initial_metadata())[REQUEST_ID_HEADER] == "my-request"
    assert engine.record.started[0].request_id == "my-request"


async def test_many_calls_at_once(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(), await start_engine()]
    running = await start_router(*(engine.address for engine in engines), routing_policy="round_robin")
    answers = await asyncio.gather(*(running.client.generate(generation([i], 5 + i % 7)) for i in range(40)))
    assert answers == [expected_tokens([i], 5 + i % 7) for i in range(40)]
    assert [len(engine.record.started) for engine in engines] == [20, 20]


async def test_prompts_of_megabytes_get_through(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Prompts of the maximum size work, several at a time in one session and beside a small one."""
    engine = await start_engine()
    running = await start_router(engine.address)
    data = bytes(range(256)) * (MAX_PROMPT_EMBEDS_BYTES // 256)
    large = common_pb2.PromptEmbeds(dtype="bfloat16", hidden_size=4096, data=data)
    async with running.client.session() as session:
        started = [
            await session.start(number, generation([number], 3, prompt_embeds=None if number == 2 else large))
            for number in range(1, 5)
        ]
        for number, output in enumerate(started, start=1):
            assert (await output.wait_ended()).tokens[0] == expected_tokens([number], 3)
    found = [request.prompt_embeds.data for request in engine.record.started]
    assert sorted(map(len, found)) == [0] + [len(data)] * 3
    assert found.count(data) == 3
