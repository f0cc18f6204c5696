"""Whether a request or something else is to blame when a process of a pool ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from quire.errors import Overloaded
from tests.support.waiting import WAIT_SECONDS
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[ChildPool]:
    async with _started() as made:
        yield made


def _pool(num_processes: int = 1) -> ChildPool:
    return ChildPool(
        "tests.support.mortal_child", Message(), Message(), work="tests", timeout_seconds=WAIT_SECONDS,
        num_processes=num_processes,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def _started() -> AsyncIterator[ChildPool]:
    made = _pool()
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_a_process_finds_packages_where_this_one_does_and_learns_no_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    async with _started() as pool:
        fields = (await pool.ask(Message())).fields
    assert os.fspath(tmp_path) in fields["path"]
    assert "secret" not in fields["environment"].values()


async def pid_of(pool: ChildPool) -> int:
    return int((await pool.ask(Message())).fields["pid"])


@pytest.mark.parametrize("num_processes", [1, 2])
async def test_a_process_is_started_ahead_of_requests_or_by_the_first(num_processes: int) -> None:
    made = _pool(num_processes)
    try:
        await made.prepare()
        assert len(made._children) == 1
        await asyncio.gather(pid_of(made), made.prepare())  # while the process is at work
        assert len(made._children) == 1
    finally:
        await made.close()


async def test_an_end_before_the_work_was_taken_is_not_its_fault_however_late_it_is_noticed(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, offset, now = await pid_of(pool), [0.0], time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: now() + offset[0])
    os.kill(first, signal.SIGSTOP)
    asked = asyncio.create_task(pid_of(pool))
    await asyncio.sleep(0)  # the message is in the pipe
    offset[0] = 5.0
    os.kill(first, signal.SIGKILL)
    assert await asked != first


async def test_work_that_a_process_dies_of_is_not_tried_again(pool: ChildPool, tmp_path: Path) -> None:
    deaths, first = tmp_path / "deaths", await pid_of(pool)
    with pytest.raises(ChildEnded):
        await pool.ask(Message({"die": str(deaths)}))
    assert deaths.read_text().split() == [str(first)]
    assert await pid_of(pool) != first


async def test_work_that_does_not_get_the_processor_is_not_what_is_slow(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(await pid_of(pool), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_timeout_seconds", 0.2)
        with pytest.raises(Overloaded, match="too busy for tests; try again"):
            await pool.ask(Message())
    assert await pid_of(pool)
