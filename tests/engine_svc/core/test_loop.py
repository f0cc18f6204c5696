"""The engine's thread where there is nothing to do."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import cast

import pytest

from engine_svc.core import loop as loop_module
from engine_svc.core.loop import EngineLoop
from engine_svc.core.stepped import SteppedEngine
from engine_svc.requests.outputs import SequenceDelta
from quire.errors import QuireError
from tests.engine_svc.executor.test_ranked import SECONDS, Subject


class IdleEngine:
    """Has no requests, and real ranks, of which the second is frozen."""

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
