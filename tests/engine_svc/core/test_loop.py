"""The engine's thread when it is idle and when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import cast

import pytest

from engine_svc.core import loop as loop_module
from engine_svc.core.loop import EngineLoop
from engine_svc.core.stepped import SteppedEngine
from engine_svc.executor.base import ExecutorDead
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.request import GenerationRequest
from quire.errors import ENGINE_FAULT, QuireError, Unavailable
from quire.sampling import SamplingParameters
from tests.engine_svc.executor.test_ranked import SECONDS, Subject


class BrokenEngine:
    """An engine whose first step fails."""

    has_work, is_waiting, num_waiting = False, False, 0

    def __init__(self) -> None:
        self.keys: list[int] = []

    def wake_by(self, wake: Callable[[], None]) -> None:
        pass

    def check_alive(self, asks: bool = False) -> None:
        pass

    def add(self, key: int, request: GenerationRequest, arrival: float) -> None:
        self.has_work = True
        self.keys.append(key)

    def step(self) -> list[SequenceDelta]:
        raise ExecutorDead("kernel")

    def give_up(self, error: QuireError) -> list[SequenceDelta]:
        return [
            SequenceDelta(key, 0, [], finish_reason=FinishReason.ERROR, is_final=True, error=error) for key in self.keys
        ]

    def close(self) -> None:
        pass


class Ends:
    """A sink that records the final deltas of requests."""

    def __init__(self) -> None:
        self.errors: dict[int, QuireError | None] = {}

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        for delta in deltas:
            assert delta.is_final and delta.key not in self.errors
            self.errors[delta.key] = delta.error


async def test_requests_that_come_while_the_engine_dies_end_too() -> None:
    loop = EngineLoop(lambda: cast("SteppedEngine", BrokenEngine()), max_waiting_requests=10)
    await loop.start()
    ends, request = Ends(), GenerationRequest("r", [1], SamplingParameters())
    first = loop.submit(request, ends)
    # Does not tell the event loop, which therefore does not know yet when the second request comes.
    thread = loop._thread
    thread.join(SECONDS)
    assert not thread.is_alive() and not loop.died.done()
    second = loop.submit(request, ends)
    assert "kernel" in str(await asyncio.wait_for(loop.died, SECONDS))
    await asyncio.wait_for(loop.wait_idle(), SECONDS)
    assert list(ends.errors) == [first, second]
    assert all(error is not None and error.reason == ENGINE_FAULT for error in ends.errors.values())
    with pytest.raises(Unavailable):
        loop.submit(request, ends)


class IdleEngine:
    """An engine without requests, with real ranks, the second of which is frozen."""

    has_work = is_waiting = False

    def __init__(self) -> None:
        self.executor = Subject().load_fake(step_timeout=1.0)
        self.wake_by, self.check_alive = self.executor.wake_by, self.executor.check_alive
        self.frozen = self.executor.pids()[1]
        os.kill(self.frozen, signal.SIGSTOP)

    def give_up(self, error: QuireError) -> list[SequenceDelta]:
        return []

    def close(self) -> None:
        self.executor.close()


async def test_a_rank_that_is_frozen_ends_an_engine_that_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_IDLE_SECONDS", 0.01)
    made: list[IdleEngine] = []

    def build() -> SteppedEngine:
        made.append(IdleEngine())
        return cast("SteppedEngine", made[0])

    loop = EngineLoop(build, max_waiting_requests=1)
    await loop.start()
    assert f"rank 1 (process {made[0].frozen})" in str(await asyncio.wait_for(loop.died, SECONDS))
    await loop.stop()
    made[0].executor.expect_the_end()
