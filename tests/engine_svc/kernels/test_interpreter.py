"""What tests/support/interpreter.py removes from Triton's interpreter does not include checks that find mistakes."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")


@triton.jit
def _add_kernel(left, right, output):
    places = tl.arange(0, 2)
    tl.store(output + places, tl.load(left + places) + tl.load(right + places))


@triton.jit
def _mismatch_kernel(output):
    tl.store(output + tl.arange(0, 4), tl.arange(0, 4) + tl.arange(0, 8))


def test_sums_that_fit_are_exact() -> None:
    for kind in (torch.int64, torch.float32, torch.float16):
        output = torch.empty(2, dtype=kind)
        _add_kernel[(1,)](torch.tensor([1, 2**14]).to(kind), torch.tensor([2, 2**14]).to(kind), output)
        assert torch.equal(output, torch.tensor([3, 2**15]).to(kind))


def test_shapes_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(Exception, match="incompatible dimensions"):
        _mismatch_kernel[(1,)](torch.empty(4, dtype=torch.int32))
