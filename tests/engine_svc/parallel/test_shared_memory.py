"""Collectives over shared memory; the ranks are threads of this process, which share the same memory."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from engine_svc.native.calls import KernelFailed, SizedCalls
from engine_svc.native.library import Kernels, kernels
from engine_svc.parallel.shared_memory import SharedMemory
from tests.support.native import every_level, fastest_kernels, needs_native

ROOM = 1 << 17
SECONDS = 60.0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make_ranks(count: int, loaded: Kernels, seconds: float = SECONDS, room: int = ROOM) -> list[SharedMemory]:
    memory = mmap.mmap(-1, SharedMemory.size(count, room))
    return [SharedMemory(memory, rank, count, loaded, seconds, room) for rank in range(count)]


def at_once(ranks: Sequence[SharedMemory], call: Callable[[int, SharedMemory], Any]) -> list[Any]:
    """Runs all ranks' calls at the same time; returns the result of each."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(call, number, rank) for number, rank in enumerate(ranks)]
        return [future.result(2 * SECONDS) for future in futures]


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


@every_level
@pytest.mark.parametrize("count", [2, 3])
def test_sums_go_from_the_first_rank_to_the_last_whatever_their_size(level: str, count: int) -> None:
    ranks = make_ranks(count, kernels(level))
    # A few values, sizes that the ranks divide among themselves, and more values than a rank's buffer holds.
    for size in (1, 100, 17_000, 70_001):
        for dtype in DTYPES:
            values = [of_rank(rank, size, dtype=dtype) for rank in range(count)]
            expected = in_order(values)
            for found in at_once(ranks, lambda number, rank: rank.all_reduce(values[number])):  # noqa: B023
                assert found.equal(expected), (size, dtype)


@every_level
def test_what_is_gathered_stands_side_by_side(level: str) -> None:
    ranks = make_ranks(3, kernels(level), room=1000)
    for shape in ((1, 7), (5, 3, 11), (40, 20), (3, 700), (0, 4)):
        for dtype in (torch.float32, torch.int64, torch.uint8):
            values = [(100 * of_rank(rank, *shape)).to(dtype) for rank in range(3)]
            for found in at_once(ranks, lambda number, rank: rank.all_gather_last(values[number])):  # noqa: B023
                assert found.equal(torch.cat(values, -1)), (shape, dtype)


@needs_native
def test_what_cannot_be_summed_here_is_known_before() -> None:
    rank = make_ranks(2, fastest_kernels())[0]
    assert rank.sums(torch.zeros(3, 4))
    assert not rank.sums(torch.zeros(3, 4).T)
    assert not rank.sums(torch.zeros(3, dtype=torch.float64))


@needs_native
def test_a_rank_that_does_not_come_is_the_end_for_all_others() -> None:
    ranks = make_ranks(3, fastest_kernels(), seconds=0.05)

    def call(number: int, rank: SharedMemory) -> None:
        if number < 2:
            with pytest.raises(KernelFailed, match=r"within 0\.05 s"):
                rank.all_reduce(torch.zeros(4))

    at_once(ranks, call)
    patient = SharedMemory(ranks[0]._memory, 2, 3, fastest_kernels(), SECONDS, ROOM)
    with pytest.raises(KernelFailed):  # no rank waits for this one any more, and it does not wait for its deadline
        patient.all_reduce(torch.zeros(4))


@needs_native
def test_a_rank_that_comes_late_is_waited_for_without_a_processor() -> None:
    ranks = make_ranks(2, fastest_kernels())
    values, waiting = [torch.ones(4), torch.ones(4)], threading.Event()

    def call(number: int, rank: SharedMemory) -> torch.Tensor:
        if number:
            assert waiting.wait(SECONDS)
            threading.Event().wait(0.05)  # longer than the others spin
        else:
            waiting.set()
        return rank.all_reduce(values[number])

    assert [found.tolist() for found in at_once(ranks, call)] == [[2.0] * 4] * 2


@needs_native
def test_recorded_sums_are_made_again() -> None:
    loaded = fastest_kernels()
    first, second = make_ranks(2, loaded)
    values = [torch.empty(4), torch.empty(4)]
    with loaded.recording() as calls:
        first.all_reduce(values[0])
    noted = SizedCalls(loaded.replay, [calls], [(4,)])
    for numbers in (1.0, 1.0), (3.0, 4.0):
        for each, number in zip(values, numbers, strict=True):
            each.fill_(number)
        at_once((first, second), lambda number, rank: rank.all_reduce(values[1]) if number else noted.replay((4,)))
        assert [each.tolist() for each in values] == [[sum(numbers)] * 4] * 2


@needs_native
def test_a_recorded_sum_that_fails_is_noticed_and_what_is_behind_it_is_not_made() -> None:
    loaded = fastest_kernels()
    first, _ = make_ranks(2, loaded, seconds=0.05)
    value, cleared = torch.ones(4), torch.ones(4)
    with loaded.recording() as calls:
        first.all_reduce(value)
        loaded.clear(cleared.data_ptr(), 1, cleared.nbytes)
    with pytest.raises(KernelFailed, match="call 1 of 2"):
        SizedCalls(loaded.replay, [calls], [(4,)]).replay((4,))
    assert cleared.tolist() == [1.0] * 4
