"""Threads for work that recurses deeply and may never return."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from quire.structured.threads import DeepThreads

SECONDS = 60.0


def done_by(threads: DeepThreads, work: Callable[[], object] = lambda: None) -> bool:
    """Whether any thread completes the work."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    threads.submit(run)
    return done.wait(SECONDS)


def test_work_may_recurse_as_deep_as_the_stack_is_large() -> None:
    """This depth would overflow an ordinary thread's stack and crash the process."""
    threads, before = DeepThreads("deep", 1), sys.getrecursionlimit()

    def sort(depth: int) -> int:  # recurses through C, where each call takes stack
        return sorted([depth], key=lambda each: sort(each - 1) if each else 0)[0]

    sys.setrecursionlimit(10**6)
    try:
        assert done_by(threads, lambda: sort(50_000))
    finally:
        sys.setrecursionlimit(before)
        threads.close()


def test_what_raises_does_not_end_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads = DeepThreads("raising", 1)
    threads.submit(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert done_by(threads)
    assert "ZeroDivisionError" in caplog.text
    threads.close()


def test_what_never_comes_back_is_replaced_a_few_times() -> None:
    now, released, begun = [0.0], threading.Event(), threading.Semaphore(0)
    threads = DeepThreads("stuck", 1, lambda: now[0])

    def hang() -> None:
        begun.release()
        released.wait(SECONDS)

    for _ in range(3):
        threads.submit(hang)
        assert begun.acquire(timeout=SECONDS)
        now[0] += 31.0
    assert done_by(threads)
    for _ in range(9):
        threads.submit(hang)
        now[0] += 31.0
    assert sum(thread.name.startswith("stuck-") for thread in threading.enumerate()) == 4
    released.set()
    assert done_by(threads)
    threads.close()


def test_what_waits_at_the_end_is_not_done() -> None:
    released, done = threading.Event(), threading.Event()
    threads = DeepThreads("ended", 1)

    def hang() -> None:
        released.wait(SECONDS)

    threads.submit(hang)
    threads.submit(done.set)
    threads.close()
    released.set()
    assert not done.wait(0.2)
