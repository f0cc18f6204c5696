"""Steps that take too long."""

from __future__ import annotations

import asyncio

import pytest

from engine_svc.core.watchdog import watch_steps
from quire.options.watchdog import WatchdogOptions

TIMEOUT = 60.0


async def test_watchdog_follows_the_steps() -> None:
    age = [5.0]
    states: asyncio.Queue[bool] = asyncio.Queue()
    given_up: asyncio.Queue[float] = asyncio.Queue()
    limits = WatchdogOptions(step_timeout_seconds=1.0, step_grace_seconds=1000.0)
    job = asyncio.create_task(watch_steps(lambda: age[0], limits, states.put, given_up.put_nowait))
    assert await asyncio.wait_for(states.get(), TIMEOUT) is False
    age[0] = 0.0
    assert await asyncio.wait_for(states.get(), TIMEOUT) is True
    assert given_up.empty()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_watchdog_gives_up_a_step_that_does_not_end() -> None:
    states: asyncio.Queue[bool] = asyncio.Queue()
    given_up: asyncio.Queue[float] = asyncio.Queue()
    job = asyncio.create_task(watch_steps(lambda: 5.0, WatchdogOptions(1.0, 0.0), states.put, given_up.put_nowait))
    assert await asyncio.wait_for(given_up.get(), TIMEOUT) == 5.0
    assert states.get_nowait() is False
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
