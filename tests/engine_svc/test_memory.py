"""Memory in pages of the requested size, and what the C library does with freed memory."""

import mmap
import platform
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_svc import memory
from engine_svc.attention.base import AttentionShape
from engine_svc.attention.native import NativeBackend
from engine_svc.memory import touch_ahead, zeros_when_touched
from engine_svc.runner.pending import StepClock
from tests.support.native import fastest_kernels, needs_native
from tests.support.waiting import eventually_now

_HUGE_PAGE = 2 << 20
_SECONDS = 60.0
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def _nobodys_pages() -> None:
    """Waits for the page threads of caches from earlier tests, which read the same clock."""
    for thread in threading.enumerate():
        if thread.name == "pages ahead":
            thread.join(_SECONDS)


_PROGRAM = """
import ctypes, resource
from engine_svc.memory import keep_freed_memory

library, size = ctypes.CDLL(None), 4 << 20
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
library.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

def use():
    pieces = [library.malloc(size) for _ in range(4)]
    for piece in pieces:
        library.memset(piece, 1, size)
    for piece in pieces:
        library.free(piece)

keep_freed_memory()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow  # imports torch
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's malloc that is told")
def test_freed_memory_is_there_for_what_comes_next() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True, timeout=120)
    assert int(ran.stdout) < 100  # page faults; the program touches 4,096 pages


_STAGING = """
import ctypes, torch
from engine_svc.layers.parameter import LoadedParameter

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", *"abcdefghi")]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap
before, kept = library.mallinfo2().arena, []
for megabytes in (24, 8, 12, 4, 6, 16, 5, 20) * 3:
    parameter = LoadedParameter((megabytes << 20,), torch.uint8, torch.device("cpu"))
    parameter.allocate()
    kept.append(torch.empty(100_000, dtype=torch.uint8))  # what a packed layer leaves behind
    del parameter
print(library.mallinfo2().arena - before)
"""


@pytest.mark.slow  # imports torch
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap that is measured")
def test_weights_that_are_packed_leave_no_gaps_in_the_heap() -> None:
    ran = subprocess.run([sys.executable, "-c", _STAGING], check=True, capture_output=True, text=True, timeout=120)
    assert int(ran.stdout) < 8 << 20


def bytes_there(tensor: torch.Tensor) -> int:
    """Returns how much of the tensor's memory is resident, in whole pages. (smaps would include its neighbors.)"""
    first, last = tensor.data_ptr() // mmap.PAGESIZE, -(-(tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    return int((pages >> np.uint64(63)).sum()) * mmap.PAGESIZE


def bytes_in_huge_pages(tensor: torch.Tensor) -> int:
    """Returns how much memory is in huge pages in the mappings that hold the tensor."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            begin, end = (int(address, 16) for address in first.split("-"))
            inside = begin < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < end
        elif inside and first == "AnonHugePages:":
            found += int(rest.split()[0]) * 1024
    return found


@pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE") or not _HUGE_PAGES.exists() or "[never]" in _HUGE_PAGES.read_text(),
    reason="there are no huge pages here",
)
def test_memory_is_in_huge_pages_unless_it_is_not_to_be() -> None:
    if not bytes_in_huge_pages(large := zeros_when_touched((4 * _HUGE_PAGE,), torch.uint8).fill_(1)):
        pytest.skip("free memory lies too scattered")
    small = zeros_when_touched((8, 3 * _HUGE_PAGE), torch.uint8, in_huge_pages=False)
    small[1::2, :2] = 7  # a small part of some rows
    assert bytes_in_huge_pages(small) == 0
    assert small[1::2, :2].eq(7).all()
    assert not small[1::2, 2:].any()
    assert large.eq(1).all()


def test_small_tensors_are_zeros_too() -> None:
    assert not zeros_when_touched((3, 5), torch.float32).any()


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="this system provides nothing ahead"
)
def test_the_first_pages_of_every_cache_are_there_before_they_are_touched() -> None:
    caches = [zeros_when_touched((3 * _HUGE_PAGE,), torch.uint8, in_huge_pages=False) for _ in range(2)]
    caches[0][5] = 7
    touch_ahead([*caches, torch.zeros(3)], lambda: True)
    eventually_now(lambda: all(bytes_there(cache) >= cache.nbytes for cache in caches), "the pages do not come")
    assert caches[0][5] == 7
    assert all(cache.sum() == expected for cache, expected in zip(caches, (7, 0), strict=True))


@pytest.mark.usefixtures("_nobodys_pages")
@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="this system provides nothing ahead"
)
def test_pages_follow_each_other_faster_while_no_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a fake clock, by which a second passes between two readings."""
    cache, clock, pauses = zeros_when_touched((4 * _HUGE_PAGE,), torch.uint8), iter(range(100)), list[float]()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("time.sleep", pauses.append)
    memory._populate([(weakref.ref(cache), cache.nbytes)], iter((True, False, False, True)).__next__)
    assert pauses == [3.0, 19.0, 19.0, 3.0]


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="this system provides nothing ahead"
)
def test_what_lies_where_a_cache_was_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [zeros_when_touched((4 * _HUGE_PAGE,), torch.uint8, in_huge_pages=False)]
    others = torch.empty(0, dtype=torch.uint8).set_(caches[0].untyped_storage())  # another tensor in the same place
    monkeypatch.setattr("engine_svc.memory.time.sleep", lambda seconds: caches.clear())
    touch_ahead(caches, lambda: True)
    for thread in threading.enumerate():
        if thread.name == "pages ahead":
            thread.join(_SECONDS)
    assert bytes_there(others) == _HUGE_PAGE


def test_between_two_steps_of_a_sequence_the_engine_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    steps = StepClock()
    assert steps.is_idle()
    steps.begin()
    now[0] += 10
    assert not steps.is_idle()
    steps.end()
    now[0] += 0.01
    assert not steps.is_idle()
    now[0] += 1
    assert steps.is_idle()


@needs_native
def test_few_tokens_take_few_pages_of_a_cache() -> None:
    shape = AttentionShape(8, 8, 64, 16, torch.float32, torch.device("cpu"))
    backend = NativeBackend(shape, fastest_kernels())
    (cache,) = backend.allocate(1024, 1)
    tokens = torch.zeros(32, 8, 64)
    backend.write(tokens, tokens, cache, torch.arange(32))
    assert 0 < bytes_there(cache) <= 2 * _HUGE_PAGE  # for keys and values of all heads
