"""Prompts that workers compute for others: requests begin on the one kind of worker and continue on the other."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import eventually

LONG, SHORT = list(range(400)), list(range(40))


@pytest.mark.parametrize("policy", ["prefix", "round_robin"])
async def test_long_prompts_begin_at_producers(
    start_engine: StartEngine, start_router: StartRouter, policy: str
) -> None:
    """No token is lost or repeated, with several choices and with log-probabilities as well."""
    producer, consumer = await start_engine(kv_role="kv_producer"), await start_engine(kv_role="kv_consumer")
    running = await start_router(producer.address, consumer.address, routing_policy=policy)
    async with running.client.session() as session:
        requests = [generation([number, *LONG], 30, n=1 + number % 2, request_id=f"r{number}") for number in range(6)]
        requests[2].sampling.logprobs = 2
        outputs = [await session.start(number, request) for number, request in enumerate(requests)]
        for number, request in enumerate(requests):
            output = await outputs[number].wait_ended()
            assert (output.error, output.finals) == (None, 1)
            for choice in range(request.sampling.n):
                assert output.tokens[choice] == expected_tokens([number, *LONG], 30, choice)
        assert outputs[2].scored[0] == 30
        assert outputs[1].usage.completion_tokens == 60
    assert sorted(producer.record.handed_over) == [f"r{number}" for number in range(6)]
    assert not producer.record.finished
    assert len(consumer.record.finished) == 6
    assert all(started.progress for started in consumer.record.started)
    assert {started.kv_source for started in producer.record.started} == {""}
    assert {started.kv_source for started in consumer.record.started} == {producer.address}
    metrics = running.router.dispatcher._metrics
    assert metrics.hand_overs._value.get() == 6
    assert metrics.migrations._value.get() == 0


async def test_others_begin_where_they_end(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Short prompts, those that a consumer has cached, and those whose log-probabilities are wanted."""
    producer, consumer = await start_engine(kv_role="kv_producer"), await start_engine(kv_role="kv_both")
    running = await start_router(producer.address, consumer.address)
    assert await running.client.generate(generation(SHORT, 5)) == expected_tokens(SHORT, 5)
    assert await running.client.generate(generation(LONG, 5)) == expected_tokens(LONG, 5)
    assert [len(engine.record.started) for engine in (producer, consumer)] == [1, 2]
    await eventually(lambda: max(each.blocks.num_blocks for each in running.router.registry.workers) >= len(LONG) // 16)
    assert await running.client.generate(generation([*LONG, 7], 5)) == expected_tokens([*LONG, 7], 5)
    scored = generation([9, *LONG], 5)
    scored.sampling.prompt_logprobs = 1
    assert await running.client.generate(scored) == expected_tokens([9, *LONG], 5)
    assert [len(engine.record.started) for engine in (producer, consumer)] == [1, 4]


@pytest.mark.parametrize("others", [[], [{"kv_role": "kv_consumer", "fingerprint": "another"}]], ids=["none", "unlike"])
async def test_producers_alone_generate_as_well(
    start_engine: StartEngine, start_router: StartRouter, others: list[dict[str, str]]
) -> None:
    """Their blocks are of no use to workers that compute something else."""
    engines = [await start_engine(kv_role="kv_producer"), *[await start_engine(**other) for other in others]]
    running = await start_router(*(engine.address for engine in engines), routing_policy="round_robin")
    for number in range(4):
        assert await running.client.generate(generation([number, *LONG], 5)) == expected_tokens([number, *LONG], 5)
    assert sum(len(engine.record.finished) for engine in engines) == 4
    assert engines[0].record.finished
    assert not engines[0].record.handed_over


async def test_what_is_reported_as_cached_is_what_the_producer_found(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """The consumer, here with larger blocks, finds what was computed for it."""
    producer = await start_engine(kv_role="kv_producer")
    consumer = await start_engine(kv_role="kv_consumer", block_size=100)
    running = await start_router(producer.address, consumer.address, routing_policy="round_robin")
    async with running.client.session() as session:
        for number, cached in enumerate((0, 384)):
            output = await (await session.start(number, generation(LONG, 10))).wait_ended()
            assert (output.usage.cached_prompt_tokens, output.usage.completion_tokens) == (cached, 10)


async def test_a_lost_producer_or_consumer_costs_no_token(start_engine: StartEngine, start_router: StartRouter) -> None:
    producer = await start_engine(kv_role="kv_producer", prefilled_after=1_000_000, step_seconds=0.02)
    consumers = [await start_engine(kv_role="kv_consumer", step_seconds=0.02) for _ in range(2)]
    running = await start_router(producer.address, *(each.address for each in consumers))
    async with running.client.session() as session:
        output = await session.start(1, generation(LONG, 60))
        await output.wait_tokens()
        await producer.close()
        await eventually(lambda: any(each.live for each in consumers))
        holder = next(each for each in consumers if each.live)
        await asyncio.sleep(0.1)
        await holder.close()
        output = await output.wait_ended()
        assert output.error is None
        assert output.tokens[0] == expected_tokens(LONG, 60)


async def test_long_prompts_wait_for_producers_and_not_for_room_in_steps(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """A full producer has them wait; once handed over, they need no room for tokens to compute."""
    producer = await start_engine(kv_role="kv_producer", max_num_batched_tokens=100, prefilled_after=20)
    consumer = await start_engine(kv_role="kv_consumer", max_num_batched_tokens=8)
    running = await start_router(producer.address, consumer.address)
    async with running.client.session() as session:
        outputs = [await session.start(number, generation([number, *LONG], 40)) for number in range(4)]
        for number, output in enumerate(outputs):
            assert (await output.wait_ended()).tokens[0] == expected_tokens([number, *LONG], 40)
    assert len(producer.record.handed_over) == 4


async def test_a_request_waits_where_nobody_could_continue_it(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Prompts are not computed for consumers that are full."""
    producer = await start_engine(kv_role="kv_producer")
    consumer = await start_engine(kv_role="kv_consumer", max_num_seqs=1, step_seconds=0.02)
    running = await start_router(producer.address, consumer.address)
    async with running.client.session() as session:
        others = [await session.start(number, generation([number], 50)) for number in range(3)]
        for other in others:
            await other.wait_tokens()
        output = await session.start(9, generation(LONG, 5))
        await asyncio.sleep(0.2)
        assert not producer.record.started
        assert (await output.wait_ended()).tokens[0] == expected_tokens(LONG, 5)
        assert any(other.finals for other in others)
    assert len(producer.record.started) == 1


GRPC = {"kv_connector": "GrpcConnector"}


async def test_prompts_for_another_deployment_are_computed_where_it_can_pull_their_blocks(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """However short or cached they are, and they end there. What another one has computed generates at once."""
    producer = await start_engine(kv_role="kv_producer", **GRPC)
    consumer = await start_engine(kv_role="kv_consumer", **GRPC)
    running = await start_router(producer.address, consumer.address, routing_policy="round_robin")
    async with running.client.session() as session:
        for number, prompt in enumerate((SHORT, LONG, SHORT)):
            asked = generation(prompt, 1)
            asked.remote_decode = True
            output = await (await session.start(number, asked)).wait_ended()
            assert (output.tokens[0], output.usage.kv_source) == (expected_tokens(prompt, 1), producer.address)
        told = generation(LONG, 5)
        told.kv_source = "10.0.0.1:50061"
        output = await (await session.start(9, told)).wait_ended()
        assert (output.tokens[0], output.usage.kv_source) == (expected_tokens(LONG, 5), "")
    assert not producer.record.handed_over
    assert len(producer.record.started) == 3
    assert [started.kv_source for started in consumer.record.started] == ["10.0.0.1:50061"]


async def test_prompts_for_another_deployment_wait_for_a_worker_that_lets_it_pull(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """They hold up nobody else meanwhile."""
    consumer = await start_engine(kv_role="kv_consumer", **GRPC)
    both = await start_engine(kv_role="kv_both", max_num_seqs=1, silent=True, **GRPC)
    running = await start_router(consumer.address, both.address)
    async with running.client.session() as session:
        for number in range(6):
            asked = generation([number, *LONG], 1)
            asked.remote_decode = True
            await session.start(number, asked)
        await eventually(lambda: bool(both.record.started))
        for number in range(6, 8):
            assert await running.client.generate(generation([number], 5)) == expected_tokens([number], 5)
    assert len(consumer.record.started) == 2
    assert len(both.record.started) < 6
