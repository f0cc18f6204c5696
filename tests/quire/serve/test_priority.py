"""System calls that Linux refuses because it is busy are retried."""

from __future__ import annotations

import pytest

from quire.serve import priority


async def test_a_busy_system_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "_REPEAT_SECONDS", 0.0)
    calls = 0

    def busy_twice() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise BlockingIOError

    await priority.repeat_when_busy(busy_twice)
    assert calls == 3


async def test_other_failures_are_not_repeated() -> None:
    calls: list[int] = []

    def refuse() -> None:
        calls.append(1)
        raise PermissionError

    with pytest.raises(PermissionError):
        await priority.repeat_when_busy(refuse)
    assert len(calls) == 1
