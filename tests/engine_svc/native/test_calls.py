"""Calls of kernels that are noted and made again."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine_svc.native.calls import NotRecordable
from engine_svc.native.library import _SIGNATURES, kernels
from tests.support.native import every_level, fastest_kernels, needs_native

SIZE = 40
# What packs weights, samples, and is asked outside of forward passes.
OUTSIDE = {
    "panel", "packed_values", "pack", "quantize_rows", "quantize_groups", "pack_int8", "packed_coded_bytes",
    "pack_coded", "set_threads", "softcap", "mean_rows", "sample", "sample_part", "candidates",
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
    made = first.clone()
    hidden.copy_(torch.rand(3, SIZE))
    calls.replay()
    changed = first.clone()
    assert not changed.equal(made)
    loaded.rms_norm(0, hidden.data_ptr(), SIZE, None, weight.data_ptr(), second.data_ptr(), SIZE, 3, SIZE, 0.5)
    loaded.add(0, second.data_ptr(), hidden.data_ptr(), None, 3, SIZE)
    assert changed.equal(second)
    assert calls.count == 2


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
