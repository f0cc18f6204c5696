"""Requests that the router does not take."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from quire.errors import Overloaded, Unavailable
from quire.memory_guard import MemoryGuard
from quire.v1 import common_pb2
from router.placement.policies.base import RouteRequest
from router.requests.admission import Admission
from router.requests.waiting_room import WaitingRoom
from tests.router.conftest import StartEngine, StartRouter
from tests.support.manual_clock import ManualClock
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS


def test_who_is_refused_is_told_how_long_others_wait() -> None:
    now = ManualClock()
    room: WaitingRoom[Mock] = WaitingRoom(9, 9, 60.0, Mock(time=now), Mock(), Mock())
    admission = Admission(2, MemoryGuard(lambda: 0.0))
    admission.check("model", 1, room)
    told = []
    for seconds in (0.0, 30.0):
        now.seconds += seconds
        with pytest.raises(Overloaded, match="--max-inflight-requests") as refusal:
            admission.check("model", 2, room)
        told.append(refusal.value.retry_after_seconds)
        request = RouteRequest("first", "model", prompt_tokens=1, sequences=1, output_tokens=1)
        room.enter(Mock(request=request, begun=False, deadline=None))
    assert told == [1.0, 30.0]


async def test_a_router_short_of_memory_takes_nothing_new(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    router, used = running.router, 0.5
    router.core.memory._used = lambda: used
    async with running.client.session() as session:
        first = await (await session.start(1, generation([1]))).wait_tokens()
        used = 0.95
        router.core.memory.look()
        refused = await (await session.start(2, generation([2], 1))).wait_ended()
        assert isinstance(refused.error, Unavailable)
        with pytest.raises(Unavailable, match="memory"):
            await router.core.pooling.pool(common_pb2.PoolRequest(), WAIT_SECONDS)
        assert router.metrics.get_sample_value("quire_router_memory_refusals_total") == 2
        used = 0.94
        router.core.memory.look()
        assert (await (await session.start(3, generation([3], 1))).wait_ended()).error is None
        assert not first.finals
