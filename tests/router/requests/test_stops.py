"""Sequences in which the caller has found a stop string."""

from __future__ import annotations

import signal

from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.engine_process import engine_process, free_port
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import GatewaySession, Output, generation
from tests.support.waiting import eventually

PROMPT = list(range(40))


def counted(running: Running, outcome: str) -> float | None:
    return running.router.metrics.get_sample_value("quire_router_requests_total", {"outcome": outcome})


async def start(session: GatewaySession, number: int = 1, n: int = 2) -> Output:
    """Starts an endless request and waits until its last choice has at least five tokens."""
    output = await session.start(number, generation(PROMPT, n=n))
    await eventually(lambda: len(output.tokens[n - 1]) >= 5)
    return output


async def test_they_are_ordinary_endings_choice_by_choice(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    (worker,) = running.router.registry.workers
    async with running.client.session() as session:
        worker.ejection.errors = 4
        output = await start(session)
        await session.stop(1, 1, 3)
        await eventually(lambda: engine.record.stopped)
        (request,) = engine.live
        generated = request.produced[1]
        other = len(output.tokens[0])
        await eventually(lambda: len(output.tokens[0]) > other + 5)
        assert (request.produced[1], output.finals) == (generated, 0)
        await session.stop(1, 0, 4)
        await output.wait_ended()
        assert [stop[1:] for stop in engine.record.stopped] == [(1, 3), (0, 4)]
        assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (40, 7)
        await session.stop(1, 0, 4)
        again = await start(session, 2, n=1)
        await session.stop(2, 0, 5)
        await session.stop(2, 1, 5)
        await session.stop(3, 0, 5)
        assert (await again.wait_ended()).usage.cached_prompt_tokens == 32
        assert again.error is None
    assert (counted(running, "finished"), counted(running, "aborted")) == (2, 0)
    assert (worker.ejection.errors, worker.prompt_tokens, worker.cached_prompt_tokens) == (0, 80, 32)
    assert not engine.record.aborted


async def test_a_stopped_choice_stays_ended_when_its_request_moves(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    with engine_process(free_port(), "--step-ms", "10") as victim:
        running = await start_router(victim.address)
        async with running.client.session() as session:
            output = await start(session)
            rescue = await start_engine()
            running.router.registry.announce("test", [rescue.address])
            await running.client.wait_ready(rescue.address)
            await session.stop(1, 0, 2)
            await session.stop(1, 5, 2)
            (stream,) = next(iter(running.router.dispatcher.sessions)).streams.values()
            await eventually(lambda: stream.journal.num_tokens < sum(map(len, output.tokens.values())))
            victim.kill()
            await eventually(lambda: rescue.record.started)
            stopped, other = rescue.record.started[0].progress
            assert (list(stopped.token_ids), stopped.finished) == (expected_tokens(PROMPT, 2), True)
            assert (other.finished, len(other.token_ids) >= 5) == (False, True)
            await session.stop(1, 1, 6)
            await output.wait_ended()
            assert (output.error, output.finals, output.usage.completion_tokens) == (None, 1, 8)


async def test_a_worker_that_dies_between_the_stop_and_the_usage(start_router: StartRouter) -> None:
    with engine_process(free_port()) as worker:
        running = await start_router(worker.address)
        async with running.client.session() as session:
            output = await start(session)
            worker.signal(signal.SIGSTOP)
            await session.stop(1, 0, 2)
            await session.stop(1, 1, 3)
            (stream,) = next(iter(running.router.dispatcher.sessions)).streams.values()
            await eventually(lambda: stream.journal.finished)
            worker.kill()
            await output.wait_ended()
            assert (output.error, output.finals) == (None, 1)
            assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (40, 5)
    assert counted(running, "finished") == 1


async def test_a_choice_is_stopped_while_its_request_waits_for_a_worker(start_router: StartRouter) -> None:
    port = free_port()
    with engine_process(port) as first:
        running = await start_router(first.address)
        async with running.client.session() as session:
            outputs = [await start(session, number) for number in range(2)]
            first.kill()
            await eventually(lambda: running.router.dispatcher.waiting.waiting == 2)
            for number in range(2):
                await session.stop(number, 1, 3)
            await session.stop(0, 0, 4)
            await outputs[0].wait_ended()
            assert (outputs[0].error, outputs[0].usage.completion_tokens) == (None, 7)
            assert not outputs[1].ended.is_set()
            with engine_process(port):
                known = len(outputs[1].tokens[0])
                await eventually(lambda: len(outputs[1].tokens[0]) > known)
                await session.stop(1, 0, 4)
                await outputs[1].wait_ended()
                assert (outputs[1].error, outputs[1].usage.completion_tokens) == (None, 7)
