"""Products with 4-bit and 8-bit weights equal those with the decoded weights bit for bit, at every level and type.

Exceptions are 4-bit codes without matrix registers, and INT8 codes where pairs of bfloat16 are not multiplied: there,
sums over spans are scaled instead of weights (coded_spans.h). These products are compared with float64, and each row
with itself beside others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_svc.native.calls import SizedCalls
from engine_svc.native.library import Kernels, kernels
from engine_svc.ops.base import Product
from engine_svc.ops.grids import E4M3, E5M2, INT4, INT8
from engine_svc.ops.native import NativeOps
from engine_svc.ops.packing import PackedWeight, experts_product, matrix_product, pack
from engine_svc.ops.packing_coded import pack_coded, packable
from engine_svc.ops.weights import CodedWeight, Grid
from tests.support.for_each import for_each
from tests.support.native import EMULATED, every_level, needs_native
from tests.support.ops import experts_by_definition

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
# Values of a quantile format, which 16 bits do not represent exactly.
QUANTILES = Grid("quantiles", tuple(torch.linspace(0.03, 0.97, 16).erfinv().tolist()))
GRIDS = [INT4, QUANTILES, INT8, E4M3, E5M2]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
WHOLE = 1 << 20
FORMS = [(16, True), (32, False), (32, True), (48, False), (64, False), (64, True), (128, False), (WHOLE, False)]
# Outputs that do not fill a panel and inputs that do not fill a chunk or vector; and sizes that fill all of them, or
# hardly any. Each with some of the forms.
SHAPES = {(66, 331): FORMS, (64, 384): FORMS[1::2], (1, 1): FORMS[::5]}
MOST = 300  # rows
COUNTS = (
    (*range(1, 18), 20, 24, 31, 32, 33, 39, 63, 64, 65, 96, 97, 255, 256, 257, 273, MOST)
    if not EMULATED
    else (1, 2, 3, 6, 7, 12, 257)
)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def coded(grid: Grid, shape: tuple[int, ...], group: int, *, has_offset: bool, has_order: bool = False) -> CodedWeight:
    """Makes random codes of finite numbers, scales of which 16 bits represent some exactly, and offsets they do not."""
    random = torch.Generator().manual_seed(group)
    finite = torch.tensor(grid.values).isfinite().nonzero().flatten()
    chosen = torch.randint(len(finite), shape, generator=random)
    groups = (*shape[:-1], -(-shape[-1] // group))
    greatest = max(abs(value) for value in grid.values if abs(value) < float("inf"))
    scale = (torch.rand(groups, generator=random) + 0.5) / greatest / shape[-1] ** 0.5
    order = torch.rand((*shape[:-2], shape[-1]), generator=random).argsort(-1) if has_order else None
    return CodedWeight(
        grid, finite[chosen].to(torch.uint8), scale.half().float() if group % 32 else scale,
        torch.rand(groups, generator=random) / shape[-1] if has_offset else None, group, order,
    )  # fmt: skip


def meaning(weight: CodedWeight) -> torch.Tensor:
    """Returns the decoded weight, [..., outputs, inputs], rounded once, to float32."""

    def spread(groups: torch.Tensor) -> torch.Tensor:
        inputs = weight.shape[-1]
        return groups.double().repeat_interleave(min(weight.group, inputs), -1)[..., :inputs]

    numbers = torch.tensor(weight.grid.values).double()[weight.codes.long()] * spread(weight.scale)
    if weight.offset is not None:
        numbers += spread(weight.offset)
    if weight.order is None:
        return numbers.float()
    places = weight.order[..., None, :].expand(weight.shape)
    return torch.empty_like(numbers).scatter_(-1, places, numbers).float()


def multiplies_pairs(found: Kernels, dtype: torch.dtype) -> bool:
    """Returns whether operands are rounded to bfloat16."""
    return dtype == torch.bfloat16 and found.level in ("avx512_bf16", "amx", "neon_bf16")


def plain(found: Kernels, weight: torch.Tensor, dtype: torch.dtype) -> Product:
    """Returns the product with a float32 weight, or with the weight in bfloat16 where the level multiplies pairs."""
    rounds = multiplies_pairs(found, dtype)
    product = NativeOps(found).matrix(weight.to(dtype) if rounds else weight, None)
    return lambda hidden, wide=False: product(hidden if rounds else hidden.float(), wide=True)


def scales_sums(found: Kernels, weight: CodedWeight, dtype: torch.dtype) -> bool:
    """Returns whether a product scales sums instead of rounding weights, which is closer to the decoded values."""
    if multiplies_pairs(found, dtype):
        return weight.grid.bits == 4 and found.level != "amx"
    return weight.grid.bits == 4 or weight.grid is INT8


def check_exactness(found: torch.Tensor, weight: CodedWeight, hidden: torch.Tensor, *, rounds: bool) -> None:
    """Compares a product that scales sums with float64, using the grid's numbers as it multiplies them."""
    grid = torch.tensor(weight.grid.values)
    grid = grid.bfloat16().float() if rounds else grid
    rounded = replace(weight, grid=Grid(weight.grid.name, tuple(grid.tolist())))
    expected, sizes = (
        hidden.double() @ meaning(rounded).double().T,
        hidden.double().abs() @ meaning(weight).double().abs().T,
    )
    greatest = (weight.scale.abs().max() * max(map(abs, weight.grid.values)) + 1e-9).item()
    bound = 2e-6 * (sizes + greatest * hidden.double().abs().sum(-1, keepdim=True))
    assert ((found.double() - expected).abs() <= bound).all()


def product_of(found: Kernels, weight: CodedWeight, dtype: torch.dtype, bias: torch.Tensor | None = None) -> Product:
    return matrix_product(found, pack_coded(found, weight, dtype), weight.shape, bias)


@every_level
@every_type
@every_grid
@for_each("shape", SHAPES)
def test_it_is_the_product_with_what_the_codes_stand_for(
    level: str, dtype: torch.dtype, grid: Grid, shape: tuple[int, int]
) -> None:
    found = kernels(level)
    hidden = normal(40, shape[1] + 8, dtype=dtype, seed=1)[:, 3 : 3 + shape[1]]
    for group, has_offset in SHAPES[shape]:
        weight = coded(grid, shape, group, has_offset=has_offset)
        numbers, product = meaning(weight), product_of(found, weight, dtype)
        expected = plain(found, numbers, dtype)(hidden)
        if scales_sums(found, weight, dtype):
            expected = product(hidden, wide=True)
            check_exactness(expected, weight, hidden, rounds=multiplies_pairs(found, dtype))
        for rows in (1, 7, 16, 40):
            assert product(hidden[:rows], wide=True).equal(expected[:rows]), (group, has_offset, rows)
        torch.testing.assert_close(expected.double(), hidden.double() @ numbers.double().T, atol=0.02, rtol=0.01)


@every_level
@every_type
@every_grid
def test_a_row_is_the_same_beside_any_others(level: str, dtype: torch.dtype, grid: Grid) -> None:
    outputs, size = (34, 400) if EMULATED else (130, 1300)
    weight = coded(grid, (outputs, size), 64, has_offset=True, has_order=True)
    hidden, bias = normal(MOST, size, dtype=dtype), normal(outputs, seed=2)
    product = product_of(kernels(level), weight, dtype, bias)
    whole = product(hidden, wide=True)
    assert product(hidden).equal(whole.to(dtype))
    if scales_sums(kernels(level), weight, dtype):
        check_exactness(whole - bias, weight, hidden, rounds=multiplies_pairs(kernels(level), dtype))
    else:
        expected = plain(kernels(level), meaning(weight), dtype)(hidden) + bias
        torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
    for count in COUNTS:
        assert product(hidden[:count], wide=True).equal(whole[:count]), count
        assert product(hidden[MOST - count :], wide=True).equal(whole[MOST - count :]), count


@every_level
@every_type
def test_every_code_stands_for_its_number(level: str, dtype: torch.dtype) -> None:
    """Includes subnormal numbers, which must come out right and must not slow a product down."""
    for grid in GRIDS:
        numbers = torch.tensor(grid.values)
        codes = torch.arange(len(numbers), dtype=torch.uint8).view(-1, 1).repeat(1, 16)
        weight = CodedWeight(grid, codes, torch.ones(len(numbers), 1), None, 16)
        hidden = torch.zeros(1, 16, dtype=dtype)
        hidden[0, 5] = 1
        result = product_of(kernels(level), weight, dtype)(hidden, wide=True)[0]
        expected = numbers.bfloat16().float() if multiplies_pairs(kernels(level), dtype) else numbers
        finite = numbers.isfinite()
        assert result[finite].equal(expected[finite])


@every_level
@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
@pytest.mark.parametrize("grid", [INT8, INT4], ids=lambda grid: grid.name)
@pytest.mark.parametrize("group", [16, 32])
def test_what_lies_between_two_numbers_becomes_the_even_one(
    level: str, dtype: torch.dtype, grid: Grid, group: int
) -> None:
    """Scales with few bits produce many ties; products of a few rows may have kernels of their own."""
    outputs, codes = 64, len(grid.values)
    weight = CodedWeight(
        grid, torch.arange(codes, dtype=torch.uint8).repeat(outputs, 256 // codes),
        ((torch.arange(outputs) + 65) / 4096)[:, None].repeat(1, 256 // group), None, group,
    )  # fmt: skip
    hidden = torch.eye(256, dtype=dtype)
    product = product_of(kernels(level), weight, dtype)
    whole = product(hidden, wide=True)
    if scales_sums(kernels(level), weight, dtype):
        assert whole.equal(meaning(weight).T)  # no weight is rounded
    else:
        assert whole.equal(plain(kernels(level), meaning(weight), torch.bfloat16)(hidden))
    for count in (1, 2, 3):
        parts = [product(rows, wide=True) for rows in hidden.split(count)]
        assert torch.cat(parts).equal(whole), count


@every_level
@every_type
@every_grid
def test_an_output_of_no_scale_is_zero(level: str, dtype: torch.dtype, grid: Grid) -> None:
    weight = coded(grid, (66, 128), 128, has_offset=False)
    weight.scale[7] = 0
    result = product_of(kernels(level), weight, dtype)(normal(3, 128, dtype=dtype), wide=True)
    assert result[:, 7].eq(0).all()
    assert result.ne(0).sum() > 100


@needs_native
def test_what_is_packable() -> None:
    weight = coded(INT4, (8, 96), 32, has_offset=False)
    assert packable(weight)
    assert packable(replace(weight, group=96))
    assert packable(replace(weight, group=100))
    assert not packable(replace(weight, group=40))
    assert not packable(replace(weight, grid=Grid("dynamic", INT8.values)))


def packed_as(kind: str, found: Kernels, weight: CodedWeight, dtype: torch.dtype) -> PackedWeight:
    if kind == "coded":
        return pack_coded(found, weight, dtype)
    numbers = meaning(weight)
    return pack(found, numbers.to(dtype) if kind == "plain" else NativeOps(found).quantize_rows(numbers))


@every_level
@every_type
@pytest.mark.parametrize("kinds", [("coded", "coded"), ("coded", "int8"), ("plain", "coded")], ids=str)
def test_experts(level: str, dtype: torch.dtype, kinds: tuple[str, str]) -> None:
    experts, chosen, (size, inner), found = 5, 2, (74, 48) if EMULATED else (202, 80), kernels(level)
    first = coded(INT4, (experts, 2 * inner, size), 32, has_offset=True, has_order=True)
    second = coded(E4M3, (experts, size, inner), WHOLE, has_offset=False, has_order=True)
    hidden = normal(MOST, size, dtype=dtype, seed=1)
    weigh, ids = normal(MOST, experts, seed=3).softmax(-1).topk(chosen)

    packed = [packed_as(kind, found, weight, dtype) for kind, weight in zip(kinds, (first, second), strict=True)]
    product = experts_product(found, *packed, second.shape)
    whole = product(hidden, weigh, ids)
    expected = experts_by_definition(hidden, weigh, ids, meaning(first), meaning(second))
    assert (whole - expected).norm() / expected.norm() < (0.03 if "int8" in kinds else 0.01)
    for count in (1, 37) if EMULATED else (1, 2, 5, 37, 64, MOST):
        assert product(hidden[:count], weigh[:count], ids[:count]).equal(whole[:count]), count
        rest = slice(MOST - count, MOST)
        assert product(hidden[rest], weigh[rest], ids[rest]).equal(whole[rest]), count


@every_level
@every_type
def test_what_is_not_packable_is_multiplied_as_what_it_stands_for(level: str, dtype: torch.dtype) -> None:
    ops, weight, hidden = NativeOps(kernels(level), dtype), coded(INT4, (66, 120), 40, has_offset=True), normal(3, 120)
    expected = NativeOps(kernels(level)).matrix(meaning(weight).to(dtype), None)(hidden.to(dtype))
    torch.testing.assert_close(ops.matrix(weight, None)(hidden.to(dtype)), expected, atol=1e-3, rtol=1e-2)
    packable_weight = coded(INT4, (66, 120), 48, has_offset=True)
    expected = product_of(kernels(level), packable_weight, dtype)(hidden.to(dtype))
    assert ops.matrix(packable_weight, None)(hidden.to(dtype)).equal(expected)


@every_level
def test_no_rows(level: str) -> None:
    product = product_of(kernels(level), coded(INT4, (70, 64), 32, has_offset=False), torch.bfloat16)
    assert product(torch.empty(0, 64, dtype=torch.bfloat16)).shape == (0, 70)


@every_level
@every_type
@every_grid
def test_rows_are_looked_up_where_the_product_has_them(level: str, dtype: torch.dtype, grid: Grid) -> None:
    loaded, indices = kernels(level), torch.tensor([0, 65, 3, 3, 64])
    for group, has_offset in FORMS:
        weight = coded(grid, (66, 331), group, has_offset=has_offset)
        product = NativeOps(loaded, dtype).matrix(weight, None)
        assert product.rows is not None
        with loaded.recording() as calls:
            found = product.rows(indices, dtype, 1.0), product.rows(indices, dtype, 3.0)
        SizedCalls(loaded.replay, [calls], [(len(indices),)]).replay((len(indices),))
        expected = meaning(weight)[indices].to(dtype)
        torch.testing.assert_close(found[0], expected, atol=0, rtol=0 if dtype != torch.float32 else 1e-6)
        assert torch.equal(found[1], found[0] * 3.0)
        assert calls.count == 2
        others = product.rows(indices, dtype, 1.0, 1)
        assert torch.equal(others[1:], product.rows(indices - 1, dtype)[1:])
        assert not others[0].any()
