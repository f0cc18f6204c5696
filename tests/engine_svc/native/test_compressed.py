"""Weights of bfloat16 compressed to 12 bits: products and rows are bitwise those of the original weights."""

from __future__ import annotations

import pytest
import torch

from engine_svc.native.library import kernels
from engine_svc.ops.base import MatrixProduct
from engine_svc.ops.native import NativeOps
from engine_svc.ops.packing import PackedCompressed, experts_product, matrix_product, pack, pack_compressed
from tests.support.native import AVAILABLE

COMPRESSING = [level for level in AVAILABLE if level != "neon"]
compressing = pytest.mark.parametrize("level", COMPRESSING)
SHAPES = [(1100, 1024), (700, 1601), (1030, 1030)]  # large enough that compression pays
ROWS = (*range(1, 37), 63, 64, 65, 192, 193, 530)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def both(level: str, weight: torch.Tensor) -> tuple[MatrixProduct, MatrixProduct]:
    """Returns products with the compressed and with the original weight."""
    bias = normal(len(weight), seed=2)
    compressed, plain = pack_compressed(kernels(level), weight), pack(kernels(level), weight)
    assert compressed is not None
    assert compressed.weights.nbytes < 0.82 * plain.weights.nbytes
    return tuple(matrix_product(kernels(level), each, weight.shape, bias) for each in (compressed, plain))  # type: ignore[return-value]


def check(level: str, weight: torch.Tensor) -> None:
    compressed, plain = both(level, weight)
    hidden = normal(max(ROWS), weight.shape[1] + 8, seed=1)[:, 3 : 3 + weight.shape[1]]
    for count in ROWS:
        found, expected = (each(hidden[:count], wide=True) for each in (compressed, plain))
        assert found.view(torch.int32).equal(expected.view(torch.int32)), count
    indices = torch.tensor([0, 63, 64, len(weight) - 1, 9])
    assert compressed.rows is not None
    assert compressed.rows(indices, torch.bfloat16).view(torch.int16).equal(weight[indices].view(torch.int16))


@compressing
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_weights_as_they_came(level: str, shape: tuple[int, int]) -> None:
    check(level, normal(*shape) * 0.02)


@compressing
def test_what_has_other_exponents_is_kept_as_it_is(level: str) -> None:
    weight = normal(3300, 1024) * 0.02
    weight[3, 5], weight[70, 0], weight[71, 1023], weight[9] = 1e30, 1e-39, -1e-38, 0
    weight[130:140] = 0
    weight[140, 7], weight[200, ::97], weight[201, 8] = 2.0, -0.0, float("-inf")
    check(level, weight)


@compressing
def test_exponents_just_beyond_those_of_a_panel(level: str) -> None:
    weight = 2.0 ** -torch.randint(0, 16, (1100, 1024), generator=torch.Generator().manual_seed(3)).float()
    weight[5, 5], weight[64, 640], weight[70, 1] = 2.0**-16, -(2.0**-16), -2.0
    check(level, weight.bfloat16())


@compressing
@pytest.mark.parametrize("least", [0, 1, 112, 240])
def test_exponents_at_the_ends_of_what_there_are(level: str, least: int) -> None:
    """The smallest exponents are those of zeros and subnormal numbers, the largest those of non-finite values."""
    random = torch.Generator().manual_seed(least)
    exponents = torch.randint(least, least + 16, (1100, 1024), generator=random)
    exponents[::50, ::90] = torch.randint(0, 256, exponents[::50, ::90].shape, generator=random)
    rest = torch.randint(0, 128, exponents.shape, generator=random)
    signs = torch.randint(0, 2, exponents.shape, generator=random)
    bits = signs << 15 | exponents << 7 | rest
    weight = bits.to(torch.uint16).view(torch.bfloat16)
    compressed, plain = both(level, weight)
    hidden = torch.eye(1024, dtype=torch.bfloat16)[[0, 3, 90, 511, 1023]]
    indices = torch.arange(len(weight))
    assert compressed.rows is not None
    assert compressed.rows(indices, torch.bfloat16).view(torch.int16).equal(weight.view(torch.int16))
    torch.testing.assert_close(compressed(hidden), plain(hidden), atol=0, rtol=0, equal_nan=True)


@compressing
def test_what_would_not_be_smaller_is_left_as_it_is(level: str) -> None:
    of_all_exponents = (2.0 ** torch.randint(-100, 100, (1100, 1024)).float()).bfloat16()
    assert pack_compressed(kernels(level), of_all_exponents) is None
    assert pack_compressed(kernels(level), normal(64, 64)) is None, "stays in a cache"
    assert pack_compressed(kernels(level), normal(1100, 1024).half()) is None
    product = NativeOps(kernels(level)).matrix(of_all_exponents, None)
    assert product.held[0].dtype == torch.bfloat16


@compressing
def test_experts_are_those_of_the_weights_as_they_came(level: str) -> None:
    """Covers a stack in which one expert has more values that are kept uncompressed."""
    experts, chosen, size, inner, tokens = 6, 2, 350, 410, 70
    gate_up, down = normal(experts, 2 * inner, size) * 0.02, normal(experts, size, inner, seed=1) * 0.02
    gate_up[4, ::80, ::100] = 1e30
    hidden, found = normal(tokens, size, seed=2), kernels(level)
    weigh, ids = normal(tokens, experts, seed=3).float().softmax(-1).topk(chosen)
    compressed = [pack_compressed(found, each) for each in (gate_up, down)]
    assert compressed[0] is not None
    assert compressed[1] is None, "stays in a cache"
    expected = experts_product(found, pack(found, gate_up), pack(found, down), down.shape)
    product = experts_product(found, compressed[0], pack(found, down), down.shape)
    for count in (1, 3, 20, tokens):
        given = hidden[:count], weigh[:count], ids[:count]
        assert product(*given).view(torch.int16).equal(expected(*given).view(torch.int16)), count
    # Experts are permuted.
    order = torch.tensor([4, 1, 5, 3, 0, 2])
    moved = PackedCompressed(compressed[0].weights[order])
    product = experts_product(found, moved, pack(found, down[order]), down.shape)
    assert (
        product(hidden, weigh, order.argsort()[ids])
        .view(torch.int16)
        .equal(expected(hidden, weigh, ids).view(torch.int16))
    )


@compressing
def test_a_layer_has_its_weights_so(level: str) -> None:
    product = NativeOps(kernels(level)).matrix(normal(1100, 1024), None)
    assert product.held[0].dtype == torch.uint8
