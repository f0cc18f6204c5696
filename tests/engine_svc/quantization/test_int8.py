"""Products in int8, against those of their quantized operands in float64."""

from __future__ import annotations

import pytest
import torch

from engine_svc.ops.base import Product
from engine_svc.ops.plain import quantize_rows
from engine_svc.ops.weights import Int8Weight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.int8 import Int8
from tests.support.native import EMULATED, needs_native
from tests.support.ops import experts_by_definition, make_ops

LINEAR = Place("linear", ("model.layers.0.mlp.down_proj",))
EXPERTS = Place("experts", ("model.layers.0.mlp.experts.0.down_proj",))
NATIVE = pytest.param("native", marks=needs_native)
both = pytest.mark.parametrize("name", ["plain", NATIVE])
every = pytest.mark.parametrize("name", ["plain", "triton", NATIVE])


def make(name: str) -> tuple[Int8, torch.dtype]:
    ops, dtype = make_ops(name)
    return Int8(ModelForm(ops, dtype)), dtype


def product(method: Int8, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return method.form.ops.matrix(method.layer(LINEAR).weight({"weight": weight}), bias)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@every
@pytest.mark.parametrize("rows", [1, 40] if EMULATED else [1, 6, 7, 40, 193])
@pytest.mark.parametrize(("outputs", "size"), [(64, 64), *([] if EMULATED else [(200, 320), (72, 1032)])])
def test_int8_matrix_is_exact_on_its_quantized_operands(name: str, rows: int, outputs: int, size: int) -> None:
    method, dtype = make(name)
    weight, hidden = normal(outputs, size, dtype=dtype), normal(rows, size, dtype=dtype, seed=1)
    bias = normal(outputs, dtype=dtype, seed=2)
    found = product(method, weight, bias)(hidden, wide=True).double()
    (left, left_scale), (right, right_scale) = quantize_rows(hidden), quantize_rows(weight)
    sums = left.double() @ right.double().T
    expected = sums * left_scale.double()[:, None] * right_scale.double() + bias.double()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)
    # Also close to the unquantized product: each factor is off by at most half of one of 127 steps.
    exact = hidden.double() @ weight.double().T + bias.double()
    assert (found - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize(
    ("rows", "outputs", "size", "dtype"),
    [(1, 8, 16, torch.float32), (64, 40, 264, torch.float16), (65, 70, 136, torch.float32)],
)
def test_a_gpus_kernels_come_to_the_same_bits(rows: int, outputs: int, size: int, dtype: torch.dtype) -> None:
    weight = Int8Weight(*quantize_rows(normal(outputs, size, dtype=dtype)))
    bias, hidden = normal(outputs, dtype=dtype, seed=2), normal(rows, size + 3, dtype=dtype, seed=1)[:, :size]
    hidden[0, 3] = 0.0
    for given in (None, bias):
        plain, triton = (make_ops(name)[0].matrix(weight, given) for name in ("plain", "triton"))
        for wide in (False, True):
            assert triton(hidden, wide=wide).equal(plain(hidden, wide=wide))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_breaks_its_row_alone(broken: float) -> None:
    ops, dtype = make_ops("triton")
    weight, hidden = Int8Weight(*quantize_rows(normal(9, 64, dtype=dtype))), normal(5, 64, dtype=dtype, seed=1)
    whole = ops.matrix(weight, None)(hidden)
    hidden[2, 7] = broken
    found = ops.matrix(weight, None)(hidden)
    assert not found[2].isfinite().any()
    others = [0, 1, 3, 4]
    assert found[others].equal(whole[others])


@every
def test_int8_matrix_of_zeros(name: str) -> None:
    method, dtype = make(name)
    zeros = torch.zeros(64, 64, dtype=dtype)
    assert not product(method, zeros, None)(zeros[:3]).any()


@both
@pytest.mark.parametrize("tokens", [1, 70] if EMULATED else [1, 3, 70, 450])
@pytest.mark.parametrize(("experts", "chosen", "size", "inner"), [(4, 2, 64, 96), (9, 3, 200, 36), (1, 1, 64, 64)])
def test_int8_experts(name: str, tokens: int, experts: int, chosen: int, size: int, inner: int) -> None:
    method, dtype = make(name)
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=1) / inner**0.5
    hidden = normal(tokens, size, dtype=dtype, seed=2)
    weights, expert_ids = normal(tokens, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    first, second = (method.layer(EXPERTS).weight({"weight": weight}) for weight in (gate_up, down))
    found = method.form.ops.experts(first, second)(hidden, weights, expert_ids)
    expected = experts_by_definition(hidden, weights, expert_ids, gate_up, down)
    assert found.dtype == dtype
    assert (found - expected).norm() / expected.norm() < 0.03
