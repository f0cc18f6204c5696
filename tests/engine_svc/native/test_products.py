"""Products at every level and type: close to float64, and bitwise independent of the other rows in a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from engine_svc.native.calls import SizedCalls
from engine_svc.native.library import kernels
from engine_svc.ops.base import Product, Routing
from engine_svc.ops.grids import E2M1
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps, quantize_rows
from engine_svc.ops.weights import CodedWeight, Int8Weight
from tests.support.for_each import for_each
from tests.support.native import AVAILABLE, EMULATED, every_level
from tests.support.ops import FORMS, experts_by_definition, forms_of_experts

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
# Sizes that are no multiple of a panel, group, tile or block over k; and one that is a multiple of all.
SHAPES = [(64, 64), (1, 1), (33, 1001), *([(50, 320)] if EMULATED else [(200, 320), (130, 2306)])]
MOST = 200  # rows


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_of_a_wider_tensor(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns [MOST, size] with a stride larger than `size`, starting at an odd offset."""
    return normal(MOST, size + 8, dtype=dtype, seed=1)[:, 3 : 3 + size]


COUNTS = (*range(1, 41), 63, 64, 65, 95, 97, 128, 191, 192, 193, MOST) if not EMULATED else (1, 2, 3, 6, 7, 12, 13, 193)


def check_batch_invariance(product: Callable[[slice], torch.Tensor]) -> None:
    """Checks that each row equals that of the whole batch, in batches of 1 row and more from its start and its end."""
    whole = product(slice(0, MOST))
    for count in COUNTS:
        assert product(slice(0, count)).equal(whole[:count]), count
        assert product(slice(MOST - count, MOST)).equal(whole[MOST - count :]), count


@every_level
@every_type
@for_each(("outputs", "size"), SHAPES)
def test_matrix(level: str, dtype: torch.dtype, outputs: int, size: int) -> None:
    weight, bias = normal(outputs, size, dtype=dtype) / size**0.5, normal(outputs, dtype=dtype, seed=2)
    hidden = rows_of_a_wider_tensor(size, dtype)
    product = NativeOps(kernels(level)).matrix(weight, bias)
    wide, expected = product(hidden, wide=True), hidden.double() @ weight.double().T + bias.double()
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), expected, atol=1e-5, rtol=1e-4)
    assert product(hidden).equal(wide.to(dtype))
    check_batch_invariance(lambda rows: product(hidden[rows], wide=True))


def int8_matrix(level: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    ops = NativeOps(kernels(level))
    return ops.matrix(ops.quantize_rows(weight), bias)


@every_level
@every_type
@for_each(("outputs", "size"), SHAPES)
def test_int8_matrix(level: str, dtype: torch.dtype, outputs: int, size: int) -> None:
    weight, bias = normal(outputs, size, dtype=dtype), normal(outputs, dtype=dtype, seed=2)
    hidden = rows_of_a_wider_tensor(size, dtype)
    product = int8_matrix(level, weight, bias)
    wide = product(hidden, wide=True)
    (left, left_scale), (right, right_scale) = quantize_rows(hidden), quantize_rows(weight)
    expected = left.double() @ right.double().T * left_scale.double()[:, None] * right_scale.double() + bias.double()
    torch.testing.assert_close(wide.double(), expected, atol=1e-4, rtol=1e-6)
    assert product(hidden).equal(wide.to(dtype))
    check_batch_invariance(lambda rows: product(hidden[rows], wide=True))


@pytest.mark.skipif(len(AVAILABLE) < 2, reason="there is one level, or none")
@every_type
def test_int8_is_the_same_on_every_level(dtype: torch.dtype) -> None:
    weight, bias, hidden = normal(130, 1030, dtype=dtype), normal(130, dtype=dtype), rows_of_a_wider_tensor(1030, dtype)
    found = [int8_matrix(level, weight, bias)(hidden, wide=True) for level in AVAILABLE]
    for first, second in itertools.pairwise(found):
        assert first.equal(second)


@every_level
def test_int8_sums_do_not_overflow(level: str) -> None:
    """All values are extreme, of either sign, so that a 16-bit sum of pairs would saturate."""
    size = 4096
    weight = torch.ones(3, size) * torch.tensor([1.0, -1.0, 1.0])[:, None]
    weight[2, ::2] = -1
    for hidden in (torch.ones(1, size), -torch.ones(1, size)):
        found = int8_matrix(level, weight, None)(hidden)
        torch.testing.assert_close(found, hidden @ weight.T, atol=1e-2, rtol=1e-6)


@every_level
@pytest.mark.parametrize("dirt", [torch.nan, torch.inf])
def test_an_int8_row_that_has_overflowed_is_broken_alone(level: str, dirt: float) -> None:
    hidden = normal(5, 64, dtype=torch.bfloat16)
    product = int8_matrix(level, normal(64, 64, dtype=torch.bfloat16), None)
    whole = product(hidden)
    hidden[2, 7] = dirt
    found = product(hidden)
    others = [0, 1, 3, 4]
    assert found[others].equal(whole[others])
    assert found[2].isnan().all()


@every_level
@every_type
@pytest.mark.parametrize("quantized", [False, True], ids=["as they are", "int8"])
def test_experts(level: str, dtype: torch.dtype, quantized: bool) -> None:
    experts, chosen, size, inner = 5, 2, 202, 41
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=2) / inner**0.5
    hidden = rows_of_a_wider_tensor(size, dtype)
    weights, ids = normal(MOST, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    ops = NativeOps(kernels(level))
    product = ops.experts(*(ops.quantize_rows(each) if quantized else each for each in (gate_up, down)))
    found = product(hidden, weights, ids)
    assert found.dtype == dtype
    expected = experts_by_definition(hidden, weights, ids, gate_up, down)
    assert (found - expected).norm() / expected.norm() < (0.03 if quantized else 5e-3)
    check_batch_invariance(lambda rows: product(hidden[rows], weights[rows], ids[rows]))


@every_level
@every_type
@for_each("name", FORMS)
def test_forms_of_experts(level: str, dtype: torch.dtype, name: str) -> None:
    experts, chosen, size, inner = 3, 2, 70, 41
    gate_up = normal(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = normal(experts, size, inner, dtype=dtype, seed=2) / inner**0.5
    hidden, form = rows_of_a_wider_tensor(size, dtype), forms_of_experts(experts, size, inner, dtype)[name]
    weights, ids = normal(MOST, experts, dtype=torch.float32, seed=3).softmax(-1).topk(chosen)
    product = NativeOps(kernels(level)).experts(gate_up, down, form)
    expected = experts_by_definition(hidden, weights, ids, gate_up, down, form)
    assert (product(hidden, weights, ids) - expected).norm() / expected.norm() < 5e-3
    check_batch_invariance(lambda rows: product(hidden[rows], weights[rows], ids[rows]))


@every_level
@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_experts_in_mxfp4(level: str, dtype: torch.dtype, name: str) -> None:
    """The result equals that of the decoded weights, bit for bit, or nearly where sums are scaled (coded_spans.h)."""
    experts, size, inner = 3, 96, 64
    ops, random = NativeOps(kernels(level)), torch.Generator().manual_seed(0)

    def coded(outputs: int, inputs: int) -> CodedWeight:
        codes = torch.randint(16, (experts, outputs, inputs), dtype=torch.uint8, generator=random)
        powers = torch.randint(-6, -3, (experts, outputs, inputs // 32), generator=random)
        return CodedWeight(E2M1, codes, torch.exp2(powers.float()), None, 32)

    gate_up, down = coded(2 * inner, size), coded(size, inner)
    hidden, form = normal(MOST, size, dtype=dtype), forms_of_experts(experts, size, inner, dtype)[name]
    weights, ids = normal(MOST, experts, dtype=torch.float32, seed=3).softmax(-1).topk(2)
    expected = ops.experts(gate_up.wide(dtype), down.wide(dtype), form)(hidden, weights, ids)
    product = ops.experts(gate_up, down, form)
    found = product(hidden, weights, ids)
    if level not in ("avx512_bf16", "neon_bf16"):
        assert found.equal(expected)
    assert (found - expected).norm() / expected.norm() < 5e-3
    for count in (1, 2, 40):
        assert product(hidden[:count], weights[:count], ids[:count]).equal(found[:count])


@every_level
@pytest.mark.parametrize(
    ("routing", "with_bias"),
    [
        (Routing(3, True), False),
        (Routing(3, True), True),
        (Routing(2, False, "sigmoid", scale=2.5), False),
        (Routing(4, True, "sigmoid", num_groups=4, chosen_groups=2), True),
        (Routing(2, False, "sparsemixer", near=0.2), False),
    ],
    ids=str,
)
def test_choose_experts(level: str, routing: Routing, with_bias: bool) -> None:
    logits, bias = normal(MOST, 16, dtype=torch.float32), normal(16, dtype=torch.float32, seed=1) / 4
    given = bias if with_bias else None
    weights, ids = NativeOps(kernels(level)).choose_experts(logits, given, routing)
    expected = PlainOps().choose_experts(logits, given, routing)
    assert ids.equal(expected[1])
    torch.testing.assert_close(weights, expected[0])


@every_level
@every_type
@pytest.mark.parametrize("quantized", [False, True], ids=["as they are", "int8"])
@for_each(("outputs", "size"), SHAPES)
def test_rows_are_looked_up_where_the_product_has_them(
    level: str, dtype: torch.dtype, quantized: bool, outputs: int, size: int
) -> None:
    """Rows are bitwise equal, also in a shard of a vocabulary, where ids outside the shard give zeros."""
    loaded, plain = kernels(level), normal(outputs, size, dtype=dtype)
    ops, first = NativeOps(loaded), 5
    weight = ops.quantize_rows(plain) if quantized else plain
    numbers = weight.wide(dtype) if isinstance(weight, Int8Weight) else weight
    look_up = ops.matrix(weight, None).rows
    assert look_up is not None
    indices = torch.tensor([outputs - 1, 0, outputs // 2, 0])
    with loaded.recording() as calls:
        found = look_up(indices, dtype), look_up(indices, dtype, 5.5)
    assert calls.count == 2
    SizedCalls(loaded.replay, [calls], [(4,)]).replay((4,))
    assert found[0].equal(numbers[indices])
    assert found[1].equal(numbers[indices] * 5.5)
    wanted = torch.tensor([first - 1, first, first + outputs - 1, first + outputs])
    part = look_up(wanted, dtype, 1.0, first)
    assert part.equal(torch.stack([torch.zeros(size), numbers[0], numbers[-1], torch.zeros(size)]).to(dtype))


@every_level
def test_no_rows(level: str) -> None:
    weight = normal(70, 64, dtype=torch.bfloat16)
    ops = NativeOps(kernels(level))
    empty = torch.empty(0, 64, dtype=torch.bfloat16)
    assert ops.matrix(weight, None)(empty).shape == (0, 70)
    assert int8_matrix(level, weight, None)(empty).shape == (0, 70)
