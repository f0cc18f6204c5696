"""The product of one or two rows with coded weights, against the dequantized weights in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.single_row import MatrixTiles, Norm
from engine_svc.kernels.single_row_coded import coded_row_product, takes_rows
from engine_svc.ops.grids import E4M3, INT4
from engine_svc.ops.packing_triton import pack_codes, pack_int8
from engine_svc.ops.triton import TritonOps
from engine_svc.ops.weights import CodedWeight, Grid, Int8Weight
from tests.engine_svc.kernels.test_coded import GRIDS, coded

SMALL = MatrixTiles(4, 128, 1)
EPSILON = 1e-5


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.double() - expected).norm() / expected.norm()
    assert error < {torch.float32: 2e-6, torch.bfloat16: 1e-2}[found.dtype]


def product_with(weight: CodedWeight, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(hidden.double(), weight.wide(torch.float32).double())


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
@pytest.mark.parametrize(
    ("outputs", "size", "group", "with_offset", "ordered"),
    [(8, 128, 128, False, False), (13, 256, 32, True, False), (5, 300, 16, True, True), (3, 50, 50, True, False)],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_product(grid: Grid, outputs: int, size: int, group: int, with_offset: bool, ordered: bool, rows: int) -> None:
    torch.manual_seed(0)
    weight = coded(grid, outputs, size, group=group, with_offset=with_offset, ordered=ordered)
    hidden, bias = torch.randn(rows, size + 3)[:, :size], torch.randn(outputs)
    packed = pack_codes(weight)
    assert takes_rows(packed)
    close(coded_row_product(hidden, packed, bias, tiles=SMALL), product_with(weight, hidden) + bias.double())
    wide = coded_row_product(hidden.bfloat16(), packed, wide=True, tiles=SMALL)
    assert wide.dtype == torch.float32
    close(wide, product_with(weight, hidden.bfloat16()))


def test_groups_that_are_no_whole_words() -> None:
    """A product with such a weight has no kernel for single rows."""
    weight = coded(INT4, 8, 60, group=12)
    assert not takes_rows(pack_codes(weight))
    matrix, hidden = TritonOps().matrix(weight, None), torch.randn(1, 60)
    assert matrix.row is None
    close(matrix(hidden), product_with(weight, hidden))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_of_a_norm(ordered: bool, has_residual: bool) -> None:
    torch.manual_seed(0)
    weight = coded(INT4, 13, 256, group=32, ordered=ordered)
    hidden, scales = torch.randn(1, 256), torch.randn(256)
    residual = torch.randn(1, 256) if has_residual else None
    found = coded_row_product(hidden, pack_codes(weight), norm=Norm(residual, scales, EPSILON), tiles=SMALL)
    total = hidden if residual is None else hidden + residual
    close(found, product_with(weight, F.rms_norm(total.double(), (256,), scales.double(), EPSILON)))


def test_of_an_activation_added_to_a_sum() -> None:
    torch.manual_seed(0)
    weight, gate_up = coded(E4M3, 13, 256, group=128), torch.randn(2, 512)
    total, added = torch.randn(2, 13), torch.randn(2, 13)
    gate, up = gate_up.double().chunk(2, -1)
    expected = total.double() + added.double() + product_with(weight, F.silu(gate) * up)
    found = coded_row_product(
        gate_up, pack_codes(weight), activation=NamedActivation("silu"), total=total, added=added, tiles=SMALL
    )
    assert found is total
    close(total, expected)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_experts(grid: Grid) -> None:
    """Two rows with three experts each, one of which is none."""
    torch.manual_seed(0)
    weight, hidden = coded(grid, 4, 13, 160, group=32), torch.randn(2, 160)
    bias, ids = torch.randn(4, 13), torch.tensor([2, -1, 0, 3, 3, 1])
    found = coded_row_product(hidden, pack_codes(weight), bias, expert_ids=ids, tiles=SMALL)
    wide = weight.wide(torch.float32).double()
    expected = torch.stack([
        F.linear(hidden[row // 3].double(), wide[expert], bias[expert].double()) if expert >= 0 else torch.zeros(13)
        for row, expert in enumerate(ids.tolist())
    ])  # fmt: skip
    close(found, expected)


@pytest.mark.parametrize("before", ["nothing", "norm", "activation"])
def test_int8(before: str) -> None:
    """Rows are quantized as for products of many rows: sums of integers, which float32 holds here."""
    torch.manual_seed(0)
    values, scale = torch.randint(-127, 128, (13, 256), dtype=torch.int8), torch.rand(13) / 100
    weight = Int8Weight(values, scale)
    hidden = torch.randn(2, 512 if before == "activation" else 256).bfloat16()
    norm = Norm(None, torch.randn(256).bfloat16(), EPSILON) if before == "norm" else None
    activation = NamedActivation("silu") if before == "activation" else None
    found = coded_row_product(hidden, pack_int8(weight), norm=norm, activation=activation, wide=True, tiles=SMALL)
    ops = TritonOps()
    if norm is not None:
        hidden = ops.rms_norm(hidden, norm.weight, norm.epsilon)
    if activation is not None:
        hidden = ops.activate_and_multiply(hidden, "silu")
    many = ops.matrix(weight, None)(hidden.repeat(2, 1), wide=True)[:2]
    assert torch.equal(found, many)
    broken = hidden.clone()
    broken[0, 3] = float("inf")
    assert coded_row_product(broken, pack_int8(weight), tiles=SMALL).isnan().all(1).tolist() == [True, False]
