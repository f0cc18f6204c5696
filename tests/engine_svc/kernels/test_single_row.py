"""The product of one or two rows, fused with what precedes and follows it, against torch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.single_row import MatrixTiles, Norm, most_rows, single_row_product, single_row_tiles
from engine_svc.ops.triton import TritonOps

# Outputs, inputs and tiles: one tile that is not full, whole tiles, and several with a partial one.
SHAPES = [(5, 7, single_row_tiles(7)), (8, 64, MatrixTiles(4, 32, 1)), (13, 100, MatrixTiles(2, 32, 1))]
EPSILON = 1e-5


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.double() - expected).norm() / expected.norm()
    assert error < {torch.float32: 1e-6, torch.bfloat16: 1e-2}[found.dtype]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "size", "tiles"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_product(
    rows: int, dtype: torch.dtype, outputs: int, size: int, tiles: MatrixTiles, has_bias: bool, wide: bool
) -> None:
    torch.manual_seed(0)
    # Rows with a stride larger than their length.
    hidden, weight = (numbers(dtype, count, size + 3)[:, :size] for count in (rows, outputs))
    bias = numbers(dtype, outputs) if has_bias else None
    found = single_row_product(hidden, weight, bias, wide=wide, tiles=tiles)
    expected = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype == (torch.float32 if wide else dtype)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (1e-6 if found.dtype == torch.float32 else 1e-2)  # wide: 16-bit products are exact in 32 bits


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "size", "tiles"), SHAPES)
@pytest.mark.parametrize("has_residual", [False, True])
def test_of_a_norm(
    rows: int, dtype: torch.dtype, outputs: int, size: int, tiles: MatrixTiles, has_residual: bool
) -> None:
    torch.manual_seed(0)
    hidden, weight, scales = numbers(dtype, rows, size), numbers(dtype, outputs, size), numbers(dtype, size)
    residual = numbers(dtype, rows, size) if has_residual else None
    given = [None if each is None else each.clone() for each in (hidden, residual)]
    found = single_row_product(hidden, weight, norm=Norm(residual, scales, EPSILON), tiles=tiles)
    total = hidden.double() + (0 if residual is None else residual.double())
    close(found, F.linear(F.rms_norm(total, (size,), scales.double(), EPSILON), weight.double()))
    assert hidden.equal(given[0]) and (residual is None or residual.equal(given[1]))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "size", "tiles"), SHAPES)
@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "clamped"])
def test_of_an_activation(
    rows: int, dtype: torch.dtype, outputs: int, size: int, tiles: MatrixTiles, name: str
) -> None:
    torch.manual_seed(0)
    gate_up, weight = 3 * numbers(dtype, rows, 2 * size), numbers(dtype, outputs, size)
    activation = NamedActivation(name, 1.7, 2.0) if name == "clamped" else NamedActivation(name)
    found = single_row_product(gate_up, weight, activation=activation, tiles=tiles)
    gate, up = gate_up.double().chunk(2, dim=-1)
    if name == "clamped":
        gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0) + 1
    activated = {
        "silu": F.silu(gate), "gelu_tanh": F.gelu(gate, approximate="tanh"), "gelu": F.gelu(gate),
        "relu": F.relu(gate), "relu2": F.relu(gate).square(), "clamped": gate * torch.sigmoid(1.7 * gate),
    }[name]  # fmt: skip
    close(found, F.linear(activated * up, weight.double()))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "size", "tiles"), SHAPES)
def test_added_to_a_total(rows: int, dtype: torch.dtype, outputs: int, size: int, tiles: MatrixTiles) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = numbers(dtype, rows, size), numbers(dtype, outputs, size), numbers(dtype, outputs)
    total, added = numbers(dtype, rows, outputs), numbers(dtype, rows, outputs)
    expected = total.double() + added.double() + F.linear(hidden.double(), weight.double(), bias.double())
    found = single_row_product(hidden, weight, bias, total=total, added=added, tiles=tiles)
    assert found is total
    close(total, expected)


@pytest.mark.parametrize("rows", [1, 2])
def test_values_that_are_apart_are_left_to_torch(rows: int) -> None:
    hidden, weight = torch.randn(7, rows).T, torch.randn(5, 7)
    torch.testing.assert_close(TritonOps().matrix(weight, None)(hidden), F.linear(hidden, weight))


def test_two_rows_share_what_a_cache_holds() -> None:
    assert most_rows(torch.empty(1024, 3072, dtype=torch.bfloat16)) == 2
    assert most_rows(torch.empty(4096, 4096, dtype=torch.bfloat16)) == 1
