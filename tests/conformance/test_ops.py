"""The contract of the operations of every implementation, against the same computed in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine_svc.ops.base import Activation, Affine, ExpertsForm, HeadNorms, Ops, PlainActivation, Routing
from tests.support.for_each import for_each
from tests.support.low_rank import ExpertAdapterCase, LowRankCase, row_tiles
from tests.support.native import EMULATED, needs_native
from tests.support.ops import CLAMPED, CLIPPED, FORMS, activated, experts_by_definition, forms_of_experts, make_ops

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
EPSILON = 1e-6
# bfloat16 sums are accumulated in float32: nothing is lost until the result is rounded.
WIDE_TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (1e-4, 1e-3)}

native = pytest.param("native", marks=needs_native)
every = pytest.mark.parametrize("name", ["plain", "triton", native])
# Triton's interpreter runs one program per row, one after the other, which is slow.
fast = pytest.mark.parametrize("name", ["plain", native])


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@every
@for_each("rows", [1, 7, 200] if EMULATED else [1, 2, 3, 5, 6, 7, 13, 36, 37, 200, 385])
@pytest.mark.parametrize(("outputs", "size"), [(64, 64), (1, 2), *([] if EMULATED else [(200, 320), (130, 1026)])])
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
    absolute, relative = WIDE_TOLERANCE[dtype]
    torch.testing.assert_close(wide.double(), expected, atol=absolute, rtol=relative)


@every
def test_matrix_reads_rows_of_a_wider_tensor(name: str) -> None:
    ops, dtype = make_ops(name)
    weight, wider = normal(64, 64, dtype=dtype) / 8, normal(5, 192, dtype=dtype, seed=1)
    hidden = wider[:, 64:128]
    close(ops.matrix(weight, None)(hidden), hidden.double() @ weight.double().T, dtype)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = hidden.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double()


@every
@pytest.mark.parametrize("shape", [(1, 64), (3, 100), (2, 4, 32)])
def test_rms_norm(name: str, shape: tuple[int, ...]) -> None:
    ops, dtype = make_ops(name)
    hidden, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)
    before = hidden.clone()
    close(ops.rms_norm(hidden, weight, EPSILON), rms_norm(hidden, weight), dtype)
    assert hidden.equal(before)


@every
def test_rms_norm_of_a_part_of_each_row(name: str) -> None:
    """A slice of each row is normalized in place, and into a slice of another tensor."""
    ops, dtype = make_ops(name)
    wider, weight, target = normal(5, 150, dtype=dtype), normal(40, dtype=dtype, seed=1), normal(5, 3, 90, dtype=dtype)
    expected, others = rms_norm(wider[:, 30:70], weight), target.clone()
    ops.rms_norm(wider[:, 30:70], weight, EPSILON, target[:, 1, 50:])
    close(target[:, 1, 50:], expected, dtype)
    others[:, 1, 50:] = target[:, 1, 50:]
    assert target.equal(others)
    ops.rms_norm(wider[:, 30:70], weight, EPSILON, wider[:, 30:70])
    close(wider[:, 30:70], expected, dtype)


@every
@pytest.mark.parametrize("scale", [1.0, 5.5])
def test_take_rows(name: str, scale: float) -> None:
    ops, dtype = make_ops(name)
    matrix, indices = normal(20, 2, 9, dtype=dtype), torch.tensor([19, 0, 3, 3, 7])
    expected = matrix[indices].double() * scale
    close(ops.take_rows(matrix, indices, scale), expected, dtype)
    of_others = (indices < 3) | (indices >= 8)
    close(ops.take_rows(matrix[:, 1:, 2:7], indices, scale), expected[:, 1:, 2:7], dtype)
    part = matrix[3:8].contiguous()
    close(ops.take_rows(part, indices, scale, first=3), expected.masked_fill(of_others[:, None, None], 0), dtype)


@every
@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_join(name: str, tokens: int) -> None:
    """Slices of a wider tensor are joined with their values copied unchanged."""
    ops, dtype = make_ops(name)
    wider, other = normal(tokens, 4, 30, dtype=dtype), normal(tokens, 3, 11, dtype=dtype, seed=1)
    parts = [wider[..., 3:10], wider[:, 1:3, 10:], other]
    found = ops.join(parts)
    assert found.equal(torch.cat([part.reshape(tokens, -1) for part in parts], dim=1))
    assert ops.join(parts[:1]).equal(parts[0].reshape(tokens, -1))


@every
@pytest.mark.parametrize("size", [9, 64, 150])
def test_mean_rows(name: str, size: int) -> None:
    ops, dtype = make_ops(name)
    hidden, lengths = normal(402, size, dtype=dtype), [1, 300, 2, 99]
    found = ops.mean_rows(hidden, torch.tensor([0, 1, 301, 303, 402], dtype=torch.int32))
    assert found.dtype is torch.float32
    expected = torch.stack([rows.double().mean(0) for rows in hidden.split(lengths)])
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)


@every
def test_zeros_like(name: str) -> None:
    ops, dtype = make_ops(name)
    hidden = normal(300, 77, dtype=dtype)
    assert ops.zeros_like(hidden).equal(torch.zeros_like(hidden))


@every
@pytest.mark.parametrize("is_gated", [False, True])
def test_add(name: str, is_gated: bool) -> None:
    ops, dtype = make_ops(name)
    total, values = normal(7, 72, dtype=dtype), normal(7, 72, dtype=dtype, seed=1)
    gates = normal(7, 1, dtype=torch.float32, seed=2) * 20 if is_gated else None
    expected = total.double() + values.double() * (1.0 if gates is None else gates.double().sigmoid())
    assert ops.add(total, values, gates) is total
    close(total, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@every
def test_gate(name: str, dtype: torch.dtype) -> None:
    ops, _ = make_ops(name)
    values, gates = normal(7, 72, dtype=dtype), normal(7, 72, dtype=dtype, seed=1) * 20
    expected = values.double() * gates.double().sigmoid()
    assert ops.gate(values, gates) is values
    close(values, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@every
def test_clip(name: str, dtype: torch.dtype) -> None:
    ops, _ = make_ops(name)
    values = torch.cat(
        (normal(7, 70, dtype=dtype), torch.tensor([[torch.inf, -torch.inf, torch.nan]] * 7, dtype=dtype)), 1
    )
    expected = values.clamp(-0.5, 0.5)
    assert ops.clip(values, 0.5) is values
    torch.testing.assert_close(values, expected, atol=0, rtol=0, equal_nan=True)


@every
def test_softcap(name: str) -> None:
    ops, _ = make_ops(name)
    logits = torch.cat((normal(3, 100, dtype=torch.float32) * 40, torch.tensor([[1e30, -1e30, 0.0]] * 3)), dim=1)
    expected = 30.0 * torch.tanh(logits.double() / 30.0)
    torch.testing.assert_close(ops.softcap(logits, 30.0).double(), expected, atol=1e-5, rtol=1e-5)


@every
def test_scale(name: str) -> None:
    ops, dtype = make_ops(name)
    values = normal(3, 150, dtype=dtype)
    part, rest = values[:, :103], values[:, 103:].clone()
    expected = part.double() * 0.3
    assert ops.scale(part, 0.3) is part
    close(part, expected, dtype)
    assert values[:, 103:].equal(rest)


@every
def test_scale_rows(name: str) -> None:
    ops, dtype = make_ops(name)
    values, factors = normal(3, 150, dtype=dtype), normal(3, 1, dtype=torch.float32)
    part, rest = values[:, :103], values[:, 103:].clone()
    expected = part.double() * factors
    ops.scale_rows(part, factors)
    close(part, expected, dtype)
    assert values[:, 103:].equal(rest)


@every
@pytest.mark.parametrize("rotated", [8, 16, 22, 64])
def test_rotate_pairs(name: str, rotated: int) -> None:
    ops, dtype = make_ops(name)
    heads, target = normal(5, 3, 80, dtype=dtype), normal(5, 3, 70, dtype=dtype)
    pairs, output, others = heads[..., 10 : 10 + rotated], target[..., 6 : 6 + rotated], target[..., :6].clone()
    angles = normal(5, rotated // 2, dtype=torch.float32, seed=1)
    table = torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)
    ops.rotate_pairs(pairs, table, output)
    turned = torch.view_as_complex(pairs.double().unflatten(-1, (-1, 2)).contiguous())
    turned = turned * torch.complex(table[:, 0].double(), table[:, 1].double())[:, None]
    close(output, torch.cat((turned.real, turned.imag), dim=-1), dtype)
    assert target[..., :6].equal(others)


@every
@pytest.mark.parametrize("tokens", [1, 5, 200])
def test_head_matrices(name: str, tokens: int) -> None:
    """Heads and target are slices of wider tensors; the matrices are used as stored and transposed."""
    ops, dtype = make_ops(name)
    weight, heads = normal(3, 24, 40, dtype=dtype) / 6, normal(tokens, 3, 50, dtype=dtype, seed=1)
    for matrices, size, outputs in ((weight, 40, 24), (weight.transpose(1, 2), 24, 40)):
        target = normal(tokens, 3, 60, dtype=dtype)
        rest = target[..., outputs:].clone()
        ops.head_matrices(matrices)(heads[..., :size], target[..., :outputs])
        expected = torch.einsum("ths,hos->tho", heads[..., :size].double(), matrices.double())
        close(target[..., :outputs], expected, dtype)
        assert target[..., outputs:].equal(rest)


ROUTINGS = {
    "mixtral": Routing(2, renormalize=True), "qwen2": Routing(3, renormalize=False), "all": Routing(8, True),
    "deepseek v2": Routing(3, False, num_groups=4, chosen_groups=2, scale=2.5),
    "deepseek v3": Routing(2, True, "sigmoid", num_groups=2, chosen_groups=1, scale=1.5),
    "sigmoid": Routing(4, False, "sigmoid"), "ernie": Routing(3, True), "llama 4": Routing(1, False, "sigmoid"),
    "deepseek v4": Routing(3, True, "sqrtsoftplus", scale=1.5),
    "kolibri": Routing(3, True, "sigmoid, biased logits", num_groups=2, chosen_groups=1),
}  # fmt: skip
WITH_BIAS = ("deepseek v3", "sigmoid", "ernie", "deepseek v4", "kolibri")


def chosen_by_definition(
    scores: list[float], judged: list[float], bias: list[float], routing: Routing
) -> tuple[list[int], list[float]]:
    """
    Args:
        judged: what the bias is added to for choosing.
    """
    ranked = [score + more for score, more in zip(judged, bias, strict=True)]
    size, judges = len(scores) // routing.num_groups, 2 if any(bias) else 1
    groups = [sum(sorted(ranked[first : first + size])[-judges:]) for first in range(0, len(scores), size)]
    best = sorted(range(routing.num_groups), key=lambda group: -groups[group])[: routing.chosen_groups]
    allowed = [index for index in range(len(scores)) if index // size in best or routing.num_groups == 1]
    ids = sorted(allowed, key=lambda index: -ranked[index])[: routing.experts_per_token]
    total = sum(scores[index] for index in ids) if routing.renormalize else 1.0
    return ids, [scores[index] / total * routing.scale for index in ids]


@every
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_choose_experts(name: str, routing: str, tokens: int) -> None:
    ops, _ = make_ops(name)
    wanted, logits = ROUTINGS[routing], normal(tokens, 8, dtype=torch.float32) * 2
    bias = normal(8, dtype=torch.float32, seed=1) if routing in WITH_BIAS else None
    weights, ids = ops.choose_experts(logits, bias, wanted)
    assert weights.dtype == torch.float32
    scores = scores_by_definition(logits, wanted)
    judged = logits.double() if wanted.scoring == "sigmoid, biased logits" else scores
    for row in range(tokens):
        added = [0.0] * 8 if bias is None else bias.double().tolist()
        expected_ids, expected = chosen_by_definition(scores[row].tolist(), judged[row].tolist(), added, wanted)
        assert ids[row].tolist() == expected_ids
        assert weights[row].tolist() == pytest.approx(expected, rel=1e-5)


@every
@pytest.mark.parametrize("routing", [ROUTINGS["mixtral"], Routing(2, False, "sparsemixer", near=0.02)])
def test_factors_multiply_the_weights_of_chosen_experts(name: str, routing: Routing) -> None:
    ops, _ = make_ops(name)
    logits, factors = normal(5, 8, dtype=torch.float32), normal(8, dtype=torch.float32, seed=1)
    weights, ids = ops.choose_experts(logits, None, routing)
    present = torch.tensor([3], dtype=torch.int32)
    found, own = ops.choose_experts(logits, None, routing, present, factors)
    assert own[:3].equal(ids[:3])
    torch.testing.assert_close(found[:3], (weights * factors[ids])[:3])


@every
@pytest.mark.parametrize("present", [0, 3, 5])
def test_rows_of_nobody_choose_no_expert(name: str, present: int) -> None:
    ops, _ = make_ops(name)
    logits = normal(5, 8, dtype=torch.float32)
    weights, ids = ops.choose_experts(logits, None, ROUTINGS["mixtral"])
    found, own = ops.choose_experts(logits, None, ROUTINGS["mixtral"], torch.tensor([present], dtype=torch.int32))
    assert own.tolist() == [*ids[:present].tolist(), *[[-1, -1]] * (5 - present)]
    assert found[:present].equal(weights[:present])


def scores_by_definition(logits: torch.Tensor, routing: Routing) -> torch.Tensor:
    wide = logits.double()
    if routing.scoring == "sqrtsoftplus":
        return wide.exp().log1p().sqrt()
    return wide.softmax(-1) if routing.scoring == "softmax" else wide.sigmoid()


@every
def test_roots_of_softplus_keep_their_digits(name: str) -> None:
    """Also where the exponential of a logit is much smaller or greater than one."""
    ops, _ = make_ops(name)
    logits = torch.tensor([[-40.0, -60.0, -80.0], [30.0, 80.0, 95.0], [-12.0, -3.0, 0.0]])
    weights, ids = ops.choose_experts(logits, torch.zeros(3), Routing(3, False, "sqrtsoftplus"))
    expected = torch.where(logits > 30, logits.double(), logits.double().exp().log1p()).sqrt()
    torch.testing.assert_close(weights.double(), expected.gather(1, ids), rtol=2e-6, atol=0)


@every
def test_experts_are_chosen_by_their_logits_where_scores_are_the_same(name: str) -> None:
    ops, _ = make_ops(name)
    logits = torch.tensor([[20.0, 40.0, 30.0], [-200.0, -300.0, -100.0]])
    _, ids = ops.choose_experts(logits, None, Routing(2, False, "sigmoid"))
    assert ids.tolist() == [[1, 2], [2, 0]]


@every
def test_sparsemixer(name: str) -> None:
    """Experts are picked one by one: each is the best of the rest, weighted among those of the rest close to it."""
    ops, _ = make_ops(name)
    logits = torch.tensor([[1.0, 3.0, 2.98, 2.0], [-1.0, -1.01, -5.0, -1.015], [0.0, -1.0, -2.0, -3.0]])
    weights, ids = ops.choose_experts(logits, None, Routing(2, False, "sparsemixer", near=0.02))
    assert ids.tolist() == [[1, 2], [0, 1], [0, 1]]
    near = [[[3.0, 2.98], [2.98]], [[-1.0, -1.01, -1.015], [-1.01, -1.015]], [[0.0], [-1.0]]]
    expected = [[float(torch.tensor(each, dtype=torch.float64).softmax(0)[0]) for each in row] for row in near]
    torch.testing.assert_close(weights.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


@every
def test_experts_are_chosen_for_whatever_has_overflowed(name: str) -> None:
    """For NaN and infinite logits any experts may be chosen, but valid and distinct ones."""
    ops, _ = make_ops(name)
    logits = torch.full((3, 8), torch.nan)
    logits[1], logits[2] = torch.inf, -torch.inf
    for routing in (*ROUTINGS.values(), Routing(2, False, "sparsemixer", near=0.02)):
        bias = torch.zeros(8) if routing.scoring == "sigmoid" and routing.num_groups > 1 else None
        _, ids = ops.choose_experts(logits, bias, routing)
        assert all(len(set(row) & set(range(8))) == routing.experts_per_token for row in ids.tolist())


@every
def test_add_rms_norm_changes_the_residual(name: str) -> None:
    ops, dtype = make_ops(name)
    hidden, residual = normal(9, 72, dtype=dtype), normal(9, 72, dtype=dtype, seed=1)
    weight, before, added = normal(72, dtype=dtype, seed=2), residual.clone(), hidden.clone()
    found = ops.add_rms_norm(hidden, residual, weight, EPSILON)
    torch.testing.assert_close(residual, before + hidden)
    assert hidden.equal(added)
    close(found, rms_norm(residual, weight), dtype)


def layer_norm(hidden: torch.Tensor, affine: Affine) -> torch.Tensor:
    deviation = hidden.double() - hidden.double().mean(-1, keepdim=True)
    normed = deviation / (deviation.square().mean(-1, keepdim=True) + EPSILON).sqrt() * affine.weight.double()
    return normed if affine.bias is None else normed + affine.bias.double()


@every
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size", [16, 72, 77, 200])
def test_layer_norm(name: str, size: int, with_bias: bool) -> None:
    """Covers rows far from zero, a slice of wider rows in place, and the sum with a residual."""
    ops, dtype = make_ops(name)
    bias = normal(size, dtype=dtype, seed=1) if with_bias else None
    affine, hidden = Affine(normal(size, dtype=dtype, seed=2), bias), normal(9, size + 5, dtype=dtype) + 4
    part, rest = hidden[:, :size], hidden[:, size:].clone()
    expected = layer_norm(part, affine)
    close(ops.layer_norm(part, affine, EPSILON), expected, dtype)
    assert ops.layer_norm(part, affine, EPSILON, part) is part
    close(part, expected, dtype)
    assert hidden[:, size:].equal(rest)
    residual, added = normal(9, size, dtype=dtype, seed=3), normal(9, size, dtype=dtype, seed=4)
    before = residual.clone()
    found = ops.add_layer_norm(added, residual, affine, EPSILON)
    torch.testing.assert_close(residual, before + added)
    close(found, layer_norm(residual, affine), dtype)


@every
@pytest.mark.parametrize(("dim", "rotated"), [(16, 16), (80, 80), (128, 128), (64, 48), (64, 22), (32, 0)])
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotate(name: str, dim: int, rotated: int, with_norms: bool, interleaved: bool) -> None:
    ops, dtype = make_ops(name)
    tokens, num_query, num_key = 5, 4, 2
    # As in the model: query and key heads, followed by value heads.
    all_heads = normal(tokens, num_query + num_key + 2, dim, dtype=dtype)
    heads, values = all_heads[:, : num_query + num_key], all_heads[:, num_query + num_key :].clone()
    angles = normal(tokens, rotated // 2, dtype=torch.float32, seed=1)
    table = torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)
    norms = HeadNorms(normal(dim, dtype=dtype, seed=2), normal(dim, dtype=dtype, seed=3), EPSILON)
    expected = heads.double()
    if with_norms:
        query, key = heads[:, :num_query], heads[:, num_query:]
        expected = torch.cat((rms_norm(query, norms.query), rms_norm(key, norms.key)), dim=1)
    cosine, sine = table.double()[:, 0, None], table.double()[:, 1, None]
    places = torch.arange(rotated).view((-1, 2) if interleaved else (2, -1))
    left, right = places.unbind(-1) if interleaved else places.unbind()
    first, second = expected[..., left], expected[..., right]
    turned = expected.clone()
    turned[..., left], turned[..., right] = first * cosine - second * sine, second * cosine + first * sine
    close(ops.rotate(heads, table, num_query, norms if with_norms else None, interleaved), turned, dtype)
    assert all_heads[:, num_query + num_key :].equal(values)


@every
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 100), (20, 64)])
def test_activate_and_multiply(name: str, rows: int, size: int) -> None:
    ops, dtype = make_ops(name)
    gate_up = normal(rows, 2 * size, dtype=dtype) * 8
    activations: tuple[Activation, ...] = ("silu", "gelu_tanh", "gelu", "relu", "relu2", CLAMPED, CLIPPED)
    for activation in activations:
        close(ops.activate_and_multiply(gate_up, activation), activated(gate_up.double(), activation), dtype)


@every
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 100), (20, 64)])
def test_activate(name: str, rows: int, size: int) -> None:
    ops, dtype = make_ops(name)
    values = normal(rows, size, dtype=dtype) * 4
    ones = torch.ones_like(values).double()
    activations: tuple[PlainActivation, ...] = ("silu", "gelu_tanh", "gelu", "relu", "relu2")
    for activation in activations:
        expected = activated(torch.cat((values.double(), ones), -1), activation)
        close(ops.activate(values.clone(), activation), expected, dtype)


def xielu(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """In float64."""
    (rise, fall, slope, limit), wide = numbers.double(), values.double()
    falling = (slope + fall) * (torch.minimum(wide, limit).expm1() - wide)
    return slope * wide + torch.where(wide > 0, rise * wide.square(), falling)


@every
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 100), (20, 64)])
def test_xielu(name: str, rows: int, size: int) -> None:
    """The limit is so large that values on both of its sides occur."""
    ops, dtype = make_ops(name)
    values, numbers = normal(rows, size, dtype=dtype) * 4, torch.tensor([0.7, 0.4, 0.6, -0.5])
    expected = xielu(values, numbers)
    found = ops.xielu(values, numbers)
    assert found is values
    close(found, expected, dtype)


@every
def test_xielu_of_any_number(name: str) -> None:
    """Near zero, where most digits of the difference would be lost, and far from it."""
    ops, _ = make_ops(name)
    values = torch.tensor([[0.0, 1e-9, -1e-9, 1e-7, -1e-7, 1e-3, -1e-3, -0.1, -0.999, -1.0, -1.001, -9.0, 1e4, -1e4]])
    numbers = torch.tensor([3.0, 4.0, 0.5, -1e-6])
    expected = xielu(values, numbers)
    torch.testing.assert_close(ops.xielu(values, numbers).double(), expected, atol=0, rtol=2e-6)
    broken, most = ops.xielu(torch.tensor([[torch.nan, torch.inf]]), numbers)[0]
    assert broken.isnan() and most == torch.inf


@fast
def test_more_rows_than_a_task_has(name: str) -> None:
    ops, dtype = make_ops(name)
    hidden, weight = normal(700, 64, dtype=dtype), normal(64, dtype=dtype, seed=1)
    close(ops.rms_norm(hidden, weight, EPSILON), rms_norm(hidden, weight), dtype)
    gate, up = hidden.double().chunk(2, dim=-1)
    close(ops.activate_and_multiply(hidden, "silu"), gate / (1 + (-gate).exp()) * up, dtype)


def check_experts(
    name: str, tokens: int, experts: int, chosen: int, size: int, inner: int, named: str = "plain"
) -> None:
    ops, dtype = make_ops(name)
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=1) / inner**0.5
    hidden = normal(tokens, size, dtype=dtype, seed=2)
    weights, expert_ids = normal(tokens, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    form = forms_of_experts(experts, size, inner, dtype)[named]
    expected = experts_by_definition(hidden, weights, expert_ids, gate_up, down, form)
    close(ops.experts(gate_up, down, form)(hidden, weights, expert_ids), expected, dtype)


@every
@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize(("experts", "chosen", "size", "inner"), [(4, 2, 64, 96), (9, 3, 200, 36), (1, 1, 64, 64)])
def test_experts(name: str, tokens: int, experts: int, chosen: int, size: int, inner: int) -> None:
    check_experts(name, tokens, experts, chosen, size, inner)


@every
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 20])
def test_forms_of_experts(name: str, tokens: int, form: str) -> None:
    check_experts(name, tokens, 5, 2, 72, 40, form)


@every
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts_that_are_elsewhere_add_nothing(name: str, tokens: int, form: str) -> None:
    """Choices of -1, the experts that this rank does not hold, add nothing; a token may have no others."""
    ops, dtype = make_ops(name)
    gate_up, down = normal(3, 64, 48, dtype=dtype) / 7, normal(3, 48, 32, dtype=dtype, seed=1) / 6
    hidden = normal(tokens, 48, dtype=dtype, seed=2)
    weights, expert_ids = normal(tokens, 6, dtype=torch.float32, seed=3).softmax(-1).topk(3)
    expert_ids = torch.where(expert_ids < 3, expert_ids, -1)
    expert_ids[0] = -1
    told = forms_of_experts(3, 48, 32, dtype)[form]
    expected = experts_by_definition(hidden, weights, expert_ids, gate_up, down, told)
    found = ops.experts(gate_up, down, told)(hidden, weights, expert_ids)
    close(found, expected, dtype)
    assert not found[0].any()


@every
@pytest.mark.parametrize("form", FORMS)
def test_an_expert_is_what_is_held_of_it(name: str, form: str) -> None:
    """Permuting the held tensors permutes the experts."""
    ops, dtype = make_ops(name)
    gate_up, down = normal(3, 64, 48, dtype=dtype) / 7, normal(3, 48, 32, dtype=dtype, seed=1) / 6
    told = forms_of_experts(3, 48, 32, dtype)[form]
    product, hidden = ops.experts(gate_up, down, told), normal(5, 48, dtype=dtype, seed=2)
    weights, expert_ids = normal(5, 3, dtype=torch.float32, seed=3).softmax(-1).topk(2)
    before = product(hidden, weights, expert_ids)
    places = torch.tensor([2, 0, 1])
    for tensor in product.held:
        tensor.copy_(tensor[places.argsort()])
    assert product(hidden, weights, places[expert_ids]).equal(before)


@every
@pytest.mark.parametrize("tokens", [1, 20])
def test_experts_without_gates(name: str, tokens: int) -> None:
    ops, dtype = make_ops(name)
    up, down = normal(5, 40, 72, dtype=dtype) / 8, normal(5, 72, 40, dtype=dtype, seed=1) / 6
    hidden, form = normal(tokens, 72, dtype=dtype, seed=2), ExpertsForm("relu2", is_gated=False)
    choice = normal(tokens, 5, dtype=torch.float32, seed=3).softmax(-1).topk(2)
    close(ops.experts(up, down, form)(hidden, *choice), experts_by_definition(hidden, *choice, up, down, form), dtype)


@fast
@pytest.mark.parametrize(("experts", "chosen", "size", "inner"), [(4, 2, 64, 96), (9, 3, 200, 36), (1, 1, 64, 64)])
def test_experts_of_many_tokens(name: str, experts: int, chosen: int, size: int, inner: int) -> None:
    check_experts(name, 220 if EMULATED else 450, experts, chosen, size, inner)


@every
def test_experts_are_chosen_by_views(name: str) -> None:
    """Weights and ids may be column views of wider tensors, as when experts are chosen among groups."""
    ops, dtype = make_ops(name)
    gate_up, down = normal(4, 64, 64, dtype=dtype) / 8, normal(4, 64, 32, dtype=dtype, seed=1) / 8
    hidden = normal(5, 64, dtype=dtype, seed=2)
    weights, expert_ids = normal(5, 4, dtype=torch.float32, seed=3).softmax(-1).sort(descending=True)
    views = weights[:, 1:3], expert_ids[:, 1:3]
    close(ops.experts(gate_up, down)(hidden, *views), experts_by_definition(hidden, *views, gate_up, down), dtype)


def rotate_all(ops: Ops, hidden: torch.Tensor) -> torch.Tensor:
    table = torch.ones(len(hidden), 2, 8, dtype=hidden.dtype)
    return ops.rotate(hidden.clone().view(len(hidden), 4, 16), table, 3, None).flatten(1)


def rotate_all_pairs(ops: Ops, hidden: torch.Tensor) -> torch.Tensor:
    output = torch.empty(len(hidden), 4, 16, dtype=hidden.dtype)
    table = torch.ones(len(hidden), 2, 8, dtype=hidden.dtype)
    ops.rotate_pairs(hidden.view(len(hidden), 4, 16), table, output)
    return output.flatten(1)


def multiply_heads(ops: Ops, hidden: torch.Tensor) -> torch.Tensor:
    output = torch.empty(len(hidden), 4, 24, dtype=hidden.dtype)
    ops.head_matrices(normal(4, 24, 16, dtype=hidden.dtype))(hidden.view(len(hidden), 4, 16), output)
    return output.flatten(1)


def choose_all(ops: Ops, hidden: torch.Tensor) -> torch.Tensor:
    gate_up, down = normal(2, 64, 64, dtype=hidden.dtype) / 8, normal(2, 64, 32, dtype=hidden.dtype) / 8
    expert_ids = torch.tensor([[0, 1]]).repeat(len(hidden), 1)
    return ops.experts(gate_up, down)(hidden, torch.full((len(hidden), 2), 0.5), expert_ids)


# Each takes and returns [rows, 64].
ROWWISE: dict[str, Callable[[Ops, torch.Tensor], torch.Tensor]] = {
    "matrix": lambda ops, hidden: ops.matrix(normal(64, 64, dtype=hidden.dtype) / 8, None)(hidden),
    "norm": lambda ops, hidden: ops.rms_norm(hidden, torch.ones(64, dtype=hidden.dtype), EPSILON),
    "add": lambda ops, hidden: ops.add_rms_norm(
        hidden, torch.zeros_like(hidden), torch.ones(64, dtype=hidden.dtype), EPSILON
    ),
    "layer norm": lambda ops, hidden: ops.layer_norm(
        hidden, Affine(torch.ones(64, dtype=hidden.dtype), torch.ones(64, dtype=hidden.dtype)), EPSILON
    ),
    "rotate": rotate_all,
    "activate": lambda ops, hidden: ops.activate_and_multiply(hidden, "silu"),
    "sum": lambda ops, hidden: ops.add(torch.ones_like(hidden), hidden, torch.zeros(len(hidden), 1)),
    "pairs": lambda ops, hidden: rotate_all_pairs(ops, hidden),
    "heads": lambda ops, hidden: multiply_heads(ops, hidden),
    "experts": choose_all,
}


@every
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy, which warns of them
@pytest.mark.parametrize("operation", ROWWISE)
@pytest.mark.parametrize("dirt", [torch.nan, torch.inf])
def test_a_row_that_has_overflowed_is_broken_alone(name: str, operation: str, dirt: float) -> None:
    """NaN or infinity in one request's row must not reach the rows of other requests."""
    ops, dtype = make_ops(name)
    hidden = normal(5, 64, dtype=dtype)
    whole = ROWWISE[operation](ops, hidden)
    hidden[2] = dirt
    found = ROWWISE[operation](ops, hidden)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(found[others], whole[others])
    assert not found[2].isfinite().all()


@every
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "outputs"), [(64, (64, 32)), (131, (130, 7))])
def test_low_rank(name: str, size: int, outputs: tuple[int, int], weight_dtype: torch.dtype) -> None:
    ops, dtype = make_ops(name)
    case = LowRankCase(size, outputs, dtype, weight_dtype)
    case.check(case.run(ops))


@every
def test_neighbouring_groups_may_share_low_rank_matrices(name: str) -> None:
    ops, dtype = make_ops(name)
    case = LowRankCase(40, (24, 8), dtype, dtype)
    groups, output = np.arange(len(case.hidden)) % 6, case.base.clone()
    sums = ops.shrink(case.hidden, case.down, case.ranks, row_tiles(groups), sharing=2)
    ops.expand(sums, case.up, case.ranks, case.starts, row_tiles(groups), output, sharing=2)
    case.groups = groups // 2
    case.check(output)


@every
@pytest.mark.parametrize("form", ["plain", "llama 4"])
@pytest.mark.parametrize("tokens", [1, 19])
def test_experts_with_adapters(name: str, form: str, tokens: int) -> None:
    """Each token goes through the experts of its own adapter."""
    ops, dtype = make_ops(name)
    experts, chosen, size, inner = 3, 2, 48, 40
    told = forms_of_experts(experts, size, inner, dtype)[form]
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=1) / inner**0.5
    hidden = normal(tokens, size, dtype=dtype, seed=2)
    weights, ids = normal(tokens, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    case = ExpertAdapterCase(experts, size, inner, dtype, tokens)
    found = ops.experts(gate_up, down, told)(hidden, weights, ids, case.given())
    for adapter in (-1, 0, 1):
        rows = case.adapters == adapter
        merged = case.merged(gate_up, case.gate_up, adapter), case.merged(down, case.down, adapter)
        expected = experts_by_definition(hidden[rows], weights[rows], ids[rows], *merged, told)
        close(found[rows], expected, dtype)
    plain = ops.experts(gate_up, down, told)
    without = case.given()._replace(adapters=torch.full_like(case.adapters, -1))
    found, expected = plain(hidden, weights, ids, without), plain(hidden, weights, ids)
    if name == "triton" and tokens == 1:  # it has other kernels for steps without adapters
        close(found, expected.double(), dtype)
    else:
        assert found.equal(expected)
