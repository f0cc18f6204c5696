"""Deltas that a worker loses or repeats are noticed, and never reach a caller."""

from __future__ import annotations

import pytest

from quire.errors import WORKER_LOST, Unavailable
from quire.v1 import common_pb2
from router.requests.journal import Journal
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import eventually


def delta(choice: int, tokens: list[int], before: int | None) -> common_pb2.GenerationDelta:
    return common_pb2.GenerationDelta(choice_index=choice, token_ids=tokens, num_previous_tokens=before)


def test_what_continues_a_sequence() -> None:
    started = generation([1], n=2)
    for tokens in ([7, 8], []):
        started.progress.add(token_ids=tokens)
    journal = Journal(started)
    for before, follows in ((2, True), (None, True), (1, False), (3, False)):
        assert journal.continues(delta(0, [9], before)) == follows
    assert journal.continues(delta(1, [9], 0))
    journal.take(delta(0, [9, 10], 2))
    assert journal.continues(delta(0, [11], 4))
    journal.stop(0, 3)
    assert journal.continues(delta(0, [11], 4))  # in transit when it was stopped


@pytest.mark.parametrize(("place", "slip"), [(0, 1), (3, 1), (3, -1)], ids=["lost first", "lost", "repeated"])
async def test_tokens_lost_or_repeated_on_the_way(
    start_engine: StartEngine, start_router: StartRouter, place: int, slip: int
) -> None:
    faulty, healthy = await start_engine(slips={place: slip}), await start_engine()
    running = await start_router(faulty.address, healthy.address, routing_policy="round_robin")
    async with running.client.session() as session:
        for number in range(2):
            request = generation([number], 6, 2, request_id=f"{number}")
            output = await (await session.start(number, request)).wait_ended()
            assert (output.error, output.finals) == (None, 1)
            for choice in range(2):
                assert output.tokens[choice] == expected_tokens([number], 6, choice)
    moves = running.router.metrics.get_sample_value("quire_router_migrations_total")
    assert moves
    await eventually(lambda: len(faulty.record.aborted) == moves)


async def test_no_worker_is_any_better(start_engine: StartEngine, start_router: StartRouter) -> None:
    """The request fails, with nothing but right tokens."""
    engines = [await start_engine(slips={3: 1}) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 9))).wait_ended()
        assert isinstance(output.error, Unavailable)
        assert output.error.reason == WORKER_LOST
        assert output.tokens[0] == expected_tokens([1], 3)
