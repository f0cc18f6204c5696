"""Kernel calls that are recorded and replayed."""

from __future__ import annotations

import ctypes
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine_svc.native.calls import Calls, KernelFailed, NotRecordable, SizedCalls
from engine_svc.native.library import _SIGNATURES, kernels
from tests.support.native import every_level, fastest_kernels, needs_native

SIZE = 40
# Functions that pack weights, sample, or are called outside of forward passes.
OUTSIDE = {
    "panel", "packed_values", "pack", "quantize_rows", "quantize_groups", "pack_int8", "compress", "compressed_bytes",
    "packed_coded_bytes", "pack_coded", "set_threads", "softcap", "mean_rows", "sample", "sample_part", "candidates",
    "sample_candidates", "score", "replay",
}  # fmt: skip


@every_level
def test_they_are_made_again_with_what_memory_holds_then(level: str) -> None:
    loaded = kernels(level)
    hidden, first, second = torch.rand(3, SIZE), torch.empty(3, SIZE), torch.empty(3, SIZE)
    weight = torch.rand(SIZE)
    with loaded.recording() as calls:
        loaded.rms_norm(
            0, hidden.data_ptr(), SIZE, None, weight.data_ptr(), first.data_ptr(), SIZE, 3, SIZE, 0.5
        )  # fmt: skip
        loaded.add(0, first.data_ptr(), hidden.data_ptr(), None, 3, SIZE)
    sized = SizedCalls(loaded.replay, [calls], [(3,)])
    for _ in range(2):
        hidden.copy_(torch.rand(3, SIZE))
        sized.replay((3,))
        loaded.rms_norm(0, hidden.data_ptr(), SIZE, None, weight.data_ptr(), second.data_ptr(), SIZE, 3, SIZE, 0.5)
        loaded.add(0, second.data_ptr(), hidden.data_ptr(), None, 3, SIZE)
        assert first.equal(second)
    assert sized.count == 2


class Given(ctypes.Structure):
    _fields_ = (("where", ctypes.c_void_p), ("rows", ctypes.c_int64))


TYPES = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]


def calls_of(tokens: int, sequences: int, own: Given | None = None, *, fixed: int = 7, more: int = 0) -> Calls:
    """Records two calls: one sized by tokens, with the caller's structure, and one sized by tokens and sequences."""
    calls = Calls()
    calls.add(4096, TYPES, (fixed, 4 * tokens, None, ctypes.byref(own or Given(8, 1))))
    calls.add(4096, TYPES, (tokens + more, sequences, ctypes.byref(Given(99, 3 * sequences)), None))
    return calls


def test_what_grows_with_a_size_is_found() -> None:
    read: list[list[int]] = []
    own = Given(8, 1)

    def replay(address: int, count: int) -> int:
        words = list((ctypes.c_int64 * 10).from_address(address))
        kept, sized = Given.from_address(words.pop(4)), Given.from_address(words.pop(7))
        read.append([*words, kept.where or 0, kept.rows, sized.where or 0, sized.rows])
        return 0

    sizes = [(3, 1), (7, 2), (64, 9)]
    steps = SizedCalls(replay, [calls_of(*size, own) for size in sizes], sizes)
    for size in ((100, 5), (1, 1)):
        steps.replay(size)
        own.rows += 1
    assert read == [
        [4096, 7, 400, 0, 4096, 100, 5, 0, 8, 1, 99, 15],
        [4096, 7, 4, 0, 4096, 1, 1, 0, 8, 2, 99, 3],
    ]


@pytest.mark.parametrize(
    "few",
    [
        calls_of(3, 1, more=1), calls_of(3, 1, fixed=8), Calls(), calls_of(3, 1, Given(9, 1)),
    ],
    ids=["no multiple", "other", "fewer of them", "another structure"],
)  # fmt: skip
def test_what_differs_otherwise_is_no_step_of_any_size(few: Calls) -> None:
    with pytest.raises(NotRecordable):
        SizedCalls(lambda address, count: 0, [few, calls_of(7, 2), calls_of(64, 9)], [(3, 1), (7, 2), (64, 9)])


def test_a_call_that_fails_is_told() -> None:
    steps = SizedCalls(lambda address, count: count - 1, [calls_of(3, 1)], [(3, 1)])
    with pytest.raises(KernelFailed, match="call 2 of 2"):
        steps.replay((3, 1))


@needs_native
def test_what_has_not_been_made_for_it_is_not_recorded() -> None:
    loaded, hidden = fastest_kernels(), torch.rand(1, SIZE)
    with pytest.raises(NotRecordable, match="softcap"), loaded.recording():
        loaded.softcap(hidden.data_ptr(), SIZE, 1, SIZE, 2.0)
    loaded.softcap(hidden.data_ptr(), SIZE, 1, SIZE, 2.0)


@needs_native
def test_all_kernels_of_forward_passes_can_be_recorded() -> None:
    assert set(_SIGNATURES) - set(fastest_kernels()._callers) == OUTSIDE


@needs_native
def test_other_threads_calls_are_not_noted() -> None:
    loaded, hidden, recording, done = fastest_kernels(), torch.rand(1, SIZE), threading.Event(), threading.Event()

    def record() -> int:
        with loaded.recording() as calls:
            recording.set()
            assert done.wait(60)
        return calls.count

    with ThreadPoolExecutor() as pool:
        counted = pool.submit(record)
        assert recording.wait(60)
        before = float(hidden[0, 0])
        loaded.softcap(hidden.data_ptr(), SIZE, 1, SIZE, 2.0)
        done.set()
    assert counted.result() == 0
    assert float(hidden[0, 0]) == pytest.approx(2 * math.tanh(before / 2))
