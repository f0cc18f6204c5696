"""Triton products with coded weights, against the same with the decoded values."""

from __future__ import annotations

import pytest
import torch

from engine_svc.kernels import coded as kernels
from engine_svc.kernels.coded import PackedCodes, coded_product, dequantized
from engine_svc.ops import triton as triton_ops
from engine_svc.ops.base import ExpertsForm, Ops
from engine_svc.ops.grids import E2M1, E4M3, E5M2, INT4, INT8, NF4
from engine_svc.ops.packing_triton import pack_codes
from engine_svc.ops.triton import InvariantTritonOps, TritonOps
from engine_svc.ops.weights import CodedWeight, Grid
from tests.support.ops import experts_by_definition

GRIDS = [INT4, INT8, E2M1, E4M3, E5M2, NF4]


def coded(
    grid: Grid, *shape: int, group: int = 16, with_offset: bool = False, ordered: bool = False, seed: int = 0
) -> CodedWeight:
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    finite = torch.tensor([code for code, value in enumerate(grid.values) if abs(value) < 1e3], dtype=torch.uint8)
    codes = finite[torch.randint(len(finite), shape, generator=generator)]
    size = sum(abs(value) for value in grid.values if abs(value) < 1e3) / len(finite)
    groups = -(-shape[-1] // group)
    scale = (torch.rand((*shape[:-1], groups), generator=generator) + 0.5) / size / shape[-1] ** 0.5
    offset = torch.randn(scale.shape, generator=generator) / 100 if with_offset else None
    orders = [torch.randperm(shape[-1], generator=generator) for _ in range(shape[0] if len(shape) == 3 else 1)]
    order = torch.stack(orders) if len(shape) == 3 else orders[0]
    return CodedWeight(grid, codes, scale, offset, group, order if ordered else None)


# Outputs, inputs, the size of a group, and whether there are offsets and an order.
MATRICES = [(64, 64, 64, False, False), (70, 131, 16, True, False), (8, 256, 128, True, True), (3, 50, 50, True, True)]
# Codes of four bits and of eight with all of them, and the other grids with one of them for each kernel.
PRODUCTS = [
    *[(INT4, matrix, rows) for matrix in MATRICES for rows in (1, 18, 70)],
    *[(INT8, matrix, rows) for matrix in MATRICES for rows in (1, 18)],
    *[(grid, MATRICES[rows > 1], rows) for grid in GRIDS if grid not in (INT4, INT8) for rows in (1, 18)],
]


@pytest.mark.parametrize(
    ("grid", "matrix", "rows"), PRODUCTS, ids=lambda each: each.name if isinstance(each, Grid) else str(each)
)
def test_matrix(
    monkeypatch: pytest.MonkeyPatch, grid: Grid, matrix: tuple[int, int, int, bool, bool], rows: int
) -> None:
    """Inputs are split into up to four parts."""
    outputs, size, group, with_offset, ordered = matrix
    monkeypatch.setattr(kernels, "multiprocessors", lambda _: 100)
    monkeypatch.setattr(kernels, "_LEAST_PART", 64)
    weight = coded(grid, outputs, size, group=group, with_offset=with_offset, ordered=ordered)
    hidden, bias = torch.randn(rows, size + 3)[:, :size], torch.randn(outputs)
    found = coded_product(hidden, pack_codes(weight), bias, wide=True)
    expected = hidden.double() @ weight.wide(torch.float32).double().T + bias.double()
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    half = TritonOps().matrix(weight, None)(hidden.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), expected - bias.double(), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
@pytest.mark.parametrize("with_offset", [False, True])
def test_rows(grid: Grid, with_offset: bool) -> None:
    weight = coded(grid, 70, 131, group=16, with_offset=with_offset)
    rows, indices = TritonOps().matrix(weight, None).rows, torch.tensor([69, 0, 3])
    assert rows is not None
    assert torch.equal(rows(indices, torch.bfloat16), weight.wide(torch.bfloat16)[indices])
    assert torch.equal(rows(indices, torch.float32, 2.0), weight.rows(indices) * 2.0)
    others = rows(indices, torch.float32, 1.0, 3)
    assert torch.equal(others[::2], weight.rows(indices[::2] - 3))
    assert not others[1].any()


FASTEST, INVARIANT = TritonOps(), InvariantTritonOps()
every_ops = pytest.mark.parametrize("ops", [FASTEST, INVARIANT], ids=["fastest", "invariant"])


@pytest.mark.parametrize(
    ("ops", "grid", "ordered", "tokens"),
    [(ops, INT4, ordered, tokens) for ops in (FASTEST, INVARIANT) for ordered in (False, True) for tokens in (1, 9)]
    + [(FASTEST, grid, False, 1) for grid in GRIDS[1:]] + [(INVARIANT, grid, True, 9) for grid in GRIDS[1:]],
    ids=lambda each: each.name if isinstance(each, Grid) else type(each).__name__ if isinstance(each, Ops) else None,
)  # fmt: skip
def test_experts(ops: Ops, grid: Grid, ordered: bool, tokens: int) -> None:
    """Either stack may be coded while the other one is plain."""
    experts, chosen, size, inner = 4, 2, 48, 40
    gate_up = coded(grid, experts, 2 * inner, size, with_offset=True, ordered=ordered)
    down = coded(grid, experts, size, inner, ordered=ordered, seed=1)
    hidden = torch.randn(tokens, size)
    weights, ids = torch.randn(tokens, experts).softmax(-1).topk(chosen)
    wide_up, wide_down = gate_up.wide(torch.float32), down.wide(torch.float32)
    expected = experts_by_definition(hidden, weights, ids, wide_up, wide_down)
    for first, second in ((gate_up, down), (gate_up, wide_down), (wide_up, down)):
        found = ops.experts(first, second)(hidden, weights, ids)
        torch.testing.assert_close(found.double(), expected.double(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("grid", [INT4, E2M1], ids=lambda grid: grid.name)
def test_experts_of_many_tokens(monkeypatch: pytest.MonkeyPatch, grid: Grid) -> None:
    """With many rows, experts are dequantized first, unless that would take too much memory."""
    experts, chosen, size, inner, tokens = 2, 1, 48, 40, 260
    gate_up, down = coded(grid, experts, 2 * inner, size, with_offset=True), coded(grid, experts, size, inner, seed=1)
    hidden = torch.randn(tokens, size)
    weights, ids = torch.randn(tokens, experts).softmax(-1).topk(chosen)
    wides = gate_up.wide(torch.float32), down.wide(torch.float32)
    expected = experts_by_definition(hidden, weights, ids, *wides)
    seen: list[PackedCodes] = []

    def noted(stack: PackedCodes, dtype: torch.dtype) -> torch.Tensor:
        seen.append(stack)
        return dequantized(stack, dtype)

    monkeypatch.setattr(triton_ops, "dequantized", noted)
    for room, calls in ((1 << 20, 2), (1 << 10, 2)):
        monkeypatch.setattr(triton_ops, "_MOST_WIDE_BYTES", room)
        found = TritonOps().experts(gate_up, down)(hidden, weights, ids)
        torch.testing.assert_close(found.double(), expected.double(), atol=1e-5, rtol=1e-4)
        assert len(seen) == calls


@every_ops
@pytest.mark.parametrize("grid", [INT4, E4M3], ids=lambda grid: grid.name)
def test_experts_without_gates(ops: Ops, grid: Grid) -> None:
    """Covers experts like Nemotron's, whose activation is squared ReLU."""
    up, down = coded(grid, 4, 40, 48, with_offset=True), coded(grid, 4, 48, 40, seed=1)
    hidden, form = torch.randn(9, 48), ExpertsForm("relu2", is_gated=False)
    weights, ids = torch.randn(9, 4).softmax(-1).topk(2)
    expected = experts_by_definition(hidden, weights, ids, up.wide(torch.float32), down.wide(torch.float32), form)
    found = ops.experts(up, down, form)(hidden, weights, ids)
    torch.testing.assert_close(found.double(), expected.double(), atol=1e-5, rtol=1e-4)


@every_ops
def test_experts_in_int8(ops: Ops) -> None:
    up, down, hidden = torch.randn(4, 80, 48) / 7, torch.randn(4, 48, 40) / 6, torch.randn(9, 48)
    weights, ids = torch.randn(9, 4).softmax(-1).topk(2)
    expected = experts_by_definition(hidden, weights, ids, up, down)
    found = ops.experts(ops.quantize_rows(up), ops.quantize_rows(down))(hidden, weights, ids)
    assert (found - expected).norm() / expected.norm() < 0.03
