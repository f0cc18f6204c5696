"""Background jobs of a gateway."""

from __future__ import annotations

import asyncio
import signal

import pytest

from gateway.background import begin


async def test_one_that_fails_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    async def fail() -> None:
        raise ZeroDivisionError

    tasks = [begin(fail()), begin(asyncio.sleep(0)), begin(asyncio.sleep(60))]
    await asyncio.wait(tasks, timeout=0.05)
    tasks[-1].cancel()
    await asyncio.wait(tasks)
    assert raised == [signal.SIGTERM]
    assert "a background task failed" in caplog.text
