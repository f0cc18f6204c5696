"""The operations, plain and native, against the same computed in float64."""

from __future__ import annotations

import pytest
import torch

from engine_svc.ops.base import HeadNorms
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.registry import create_ops
from engine_svc.quantization.registry import create_method
from quire.errors import StartupError
from tests.support.native import needs_native
from tests.support.ops import make_ops

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
EPSILON = 1e-6


every = pytest.mark.parametrize("name", ["plain", "triton", pytest.param("native", marks=needs_native)])
both = pytest.mark.parametrize("name", ["plain", pytest.param("native", marks=needs_native)])


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@both
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 13, 36, 37, 200, 385])
@pytest.mark.parametrize(("outputs", "size"), [(64, 64), (200, 320), (1, 2), (130, 1026)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_matrix(name: str, rows: int, outputs: int, size: int, with_bias: bool) -> None:
    ops, dtype = make_ops(name)
    weight, hidden = normal(outputs, size, dtype=dtype) / size**0.5, normal(rows, size, dtype=dtype, seed=1)
    bias = normal(outputs, dtype=dtype, seed=2) if with_bias else None
    product = ops.matrix(weight, bias)
    expected = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    close(product(hidden), expected, dtype)
    wide = product(hidden, wide=True)
    assert wide.dtype == torch.float32
    # bfloat16 sums are float32 inside: nothing is lost until the result is rounded.
    torch.testing.assert_close(
        wide.double(), expected, atol=1e-4 if name == "native" else 1e-5, rtol=1e-3 if name == "native" else 1e-5
    )


@both
def test_matrix_reads_rows_of_a_wider_tensor(name: str) -> None:
    ops, dtype = make_ops(name)
    weight, wider = normal(64, 64, dtype=dtype) / 8, normal(5, 192, dtype=dtype, seed=1)
    hidden = wider[:, 64:128]
    close(ops.matrix(weight, None)(hidden), hidden.double() @ weight.double().T, dtype)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = hidden.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double()


@every
@pytest.mark.parametrize("shape", [(1, 64), (3, 100), (700, 64), (2, 4, 32)])
def test_rms_norm(name: str, shape: tuple[int, ...]) -> None:
    ops, dtype = make_ops(name)
    hidden, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)
    close(ops.rms_norm(hidden, weight, EPSILON), rms_norm(hidden, weight), dtype)


@every
def test_add_rms_norm_changes_the_residual(name: str) -> None:
    ops, dtype = make_ops(name)
    hidden, residual = normal(9, 72, dtype=dtype), normal(9, 72, dtype=dtype, seed=1)
    weight, before = normal(72, dtype=dtype, seed=2), residual.clone()
    found = ops.add_rms_norm(hidden, residual, weight, EPSILON)
    torch.testing.assert_close(residual, before + hidden)
    close(found, rms_norm(residual, weight), dtype)


@every
@pytest.mark.parametrize(("dim", "rotated"), [(16, 16), (80, 80), (128, 128), (64, 48)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_rotate(name: str, dim: int, rotated: int, with_norms: bool) -> None:
    ops, dtype = make_ops(name)
    tokens, num_query, num_key = 5, 4, 2
    # As in the model: the heads of query and key, with those of value behind them.
    heads = normal(tokens, num_query + num_key + 2, dim, dtype=dtype)[:, : num_query + num_key]
    angles = normal(tokens, rotated // 2, dtype=torch.float32, seed=1)
    table = torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)
    norms = HeadNorms(normal(dim, dtype=dtype, seed=2), normal(dim, dtype=dtype, seed=3), EPSILON)
    expected = heads.double()
    if with_norms:
        query, key = heads[:, :num_query], heads[:, num_query:]
        expected = torch.cat((rms_norm(query, norms.query), rms_norm(key, norms.key)), dim=1)
    first, second, rest = expected.split((rotated // 2, rotated // 2, dim - rotated), dim=-1)
    cosine, sine = table.double()[:, 0, None], table.double()[:, 1, None]
    expected = torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)
    close(ops.rotate(heads, table, num_query, norms if with_norms else None), expected, dtype)


@every
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 100), (700, 64)])
def test_activate_and_multiply(name: str, rows: int, size: int) -> None:
    ops, dtype = make_ops(name)
    gate_up = normal(rows, 2 * size, dtype=dtype) * 8
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(ops.activate_and_multiply(gate_up, "silu"), gate / (1 + (-gate).exp()) * up, dtype)
    gelu = torch.nn.functional.gelu(gate, approximate="tanh")
    close(ops.activate_and_multiply(gate_up, "gelu_tanh"), gelu * up, dtype)


def test_native_kernels_are_refused_where_they_cannot_run() -> None:
    with pytest.raises(StartupError, match="bfloat16"):
        create_ops("native", torch.float32, torch.device("cpu"))
    with pytest.raises(StartupError, match="on cuda"):
        create_ops("native", torch.bfloat16, torch.device("cuda"))


def test_other_types_run_on_torch() -> None:
    assert type(create_ops("auto", torch.float32, torch.device("cpu"))) is PlainOps
    assert type(create_ops("torch", torch.bfloat16, torch.device("cpu"))) is PlainOps


@needs_native
def test_bfloat16_runs_natively() -> None:
    assert isinstance(create_ops("auto", torch.bfloat16, torch.device("cpu")), NativeOps)


def feed_forward(hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (hidden @ gate_up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


@every
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 70, 450])
@pytest.mark.parametrize(("experts", "chosen", "size", "inner"), [(4, 2, 64, 96), (9, 3, 200, 36), (1, 1, 64, 64)])
def test_experts(name: str, quantized: bool, tokens: int, experts: int, chosen: int, size: int, inner: int) -> None:
    ops, dtype = make_ops(name)
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=1) / inner**0.5
    hidden = normal(tokens, size, dtype=dtype, seed=2)
    weights, expert_ids = normal(tokens, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    method = create_method("int8" if quantized else None, ops, dtype)
    product = method.experts({"weight": gate_up}, {"weight": down})
    expected = torch.zeros(tokens, size, dtype=torch.float64)
    for token in range(tokens):
        for weight, index in zip(weights[token], expert_ids[token], strict=True):
            expected[token] += weight * feed_forward(
                hidden[token].double(), gate_up[index].double(), down[index].double()
            )
    found = product(hidden, weights, expert_ids)
    assert found.dtype == dtype
    if quantized:
        assert (found - expected).norm() / expected.norm() < 0.03
    else:
        close(found, expected, dtype)
