"""Grouping rows by expert in one kernel, against the same by sorting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.experts import ProductTiles, grouped_product, sort_by_expert
from engine_svc.kernels.single_row import MatrixTiles, single_row_tiles
from engine_svc.kernels.single_row_experts import DOWN, Stack, single_row_experts
from engine_svc.ops.base import Activation, ClampedSwish, Routing, Scoring
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.triton import TritonOps
from tests.support.launches import Launches

ON_A_GPU = (single_row_tiles(37), DOWN)


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "tile"),
    [(1, 2, 4, 16), (40, 3, 7, 64), (700, 2, 3, 16), (9, 8, 20, 16), (2100, 2, 4, 64)],
)
def test_rows_are_in_tiles_of_their_experts(tokens: int, chosen: int, experts: int, tile: int) -> None:
    ids = torch.randint(-1, experts, (tokens, chosen), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = ids[:, 0].clamp(max=1)  # some experts get many rows, and others none
    found = sort_by_expert(ids, experts, tile)
    assert (found.num_rows, found.tile) == (ids.numel(), tile)
    rows, owners = found.row.view(-1, tile), found.expert
    for expert in range(experts):
        own = rows[owners == expert].flatten()
        expected = torch.nonzero(ids.flatten() == expert)[:, 0]
        assert own[: len(expected)].tolist() == expected.tolist()
        assert (own[len(expected) :] == found.num_rows).all()
        assert len(own) == -(-len(expected) // tile) * tile
    used = int((owners >= 0).sum())
    assert (owners[used:] == -1).all()
    assert owners[:used].tolist() == sorted(owners[:used].tolist())
    # Each row without an expert is, once, in a tile without an expert.
    left = rows[used:].flatten()
    assert left[left < found.num_rows].tolist() == torch.nonzero(ids.flatten() < 0)[:, 0].tolist()


def test_tiles_of_weights_that_a_gpu_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of outputs go beyond their expert's."""
    tiles = ProductTiles(32, 16, 4, 2, are_copied=True)
    monkeypatch.setattr("engine_svc.kernels.experts._copies_tiles", lambda device: True)
    monkeypatch.setattr("engine_svc.kernels.experts.product_tiles", lambda *form, roomy: tiles)
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 32).half(), torch.randn(3, 40, 32).half()
    ids = torch.randint(3, (20, 2))
    found = grouped_product(hidden, weight, sort_by_expert(ids, 3), 2)
    expected = torch.einsum("ri,roi->ro", hidden.double().repeat_interleave(2, 0), weight.double()[ids.flatten()])
    assert (found - expected).norm() / expected.norm() < 1e-3


@pytest.mark.parametrize("tokens", [1, 2, 70])
def test_a_gpu_is_given_few_kernels(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    product = TritonOps().experts(torch.randn(2, 16, 8), torch.randn(2, 8, 8))
    hidden, (weights, ids) = torch.randn(tokens, 8), torch.randn(tokens, 2).softmax(-1).topk(1)
    with (launches := Launches(monkeypatch)):
        product(hidden, weights, ids)
    of_many = ["_sort_kernel", "_grouped_kernel", "_gated_kernel", "_grouped_kernel", "_add_kernel"]
    assert launches.names == (["_gate_up_kernel", "_down_kernel"] if tokens == 1 else of_many)


@pytest.mark.parametrize("tiles", [ON_A_GPU, (MatrixTiles(8, 16, 1), MatrixTiles(16, 8, 1))])  # one tile, and several
@pytest.mark.parametrize(
    ("dtype", "activation", "has_bias", "ids"),
    [
        (torch.float32, "silu", False, [3, 0, 2]), (torch.float32, "gelu_tanh", True, [-1, 4, 1]),
        (torch.float32, ClampedSwish(1.7, 0.5), True, [-1, -1, 3]), (torch.float32, "silu", False, [-1, -1, -1]),
        (torch.bfloat16, "silu", True, [3, 0, 2]),
    ],
)  # fmt: skip
def test_experts_of_one_token(
    tiles: tuple[MatrixTiles, MatrixTiles],
    dtype: torch.dtype,
    activation: Activation,
    has_bias: bool,
    ids: list[int],
) -> None:
    """Compares the fused kernels for one token with torch's operators in float64."""
    torch.manual_seed(0)
    experts, size, inner = 5, 37, 21
    gate_up, down = torch.randn(experts, 2 * inner, size).to(dtype), torch.randn(experts, size, inner).to(dtype)
    biases = [torch.randn(experts, each).to(dtype) if has_bias else None for each in (2 * inner, size)]
    hidden, shares, chosen = torch.randn(1, size).to(dtype), torch.rand(1, 3), torch.tensor([ids])
    named = (
        NamedActivation("clamped", 1.7, 0.5) if isinstance(activation, ClampedSwish) else NamedActivation(activation)
    )
    stacks = Stack(gate_up, biases[0]), Stack(down, biases[1])
    found = single_row_experts(hidden, *stacks, shares, chosen, named, tiles)
    expected = torch.zeros(1, size, dtype=torch.float64)
    for share, index in zip(shares[0], ids, strict=True):
        first, second = (None if each is None else each[index].double() for each in biases)
        inside = PlainOps().activate_and_multiply(F.linear(hidden.double(), gate_up[index].double(), first), activation)
        expected += share * F.linear(inside, down[index].double(), second) if index >= 0 else 0
    error = (found.double() - expected).norm() / expected.norm().clamp(min=1e-9)
    assert error < (1e-6 if dtype == torch.float32 else 2e-2)  # intermediate values are rounded, too


@pytest.mark.parametrize(
    ("experts", "routing", "has_bias"),
    [
        (128, Routing(8, True), False),
        (60, Routing(4, False), False),
        (256, Routing(8, True, "sigmoid", num_groups=8, chosen_groups=4, scale=2.5), True),
        (160, Routing(6, False, num_groups=8, chosen_groups=3, scale=16.0), False),
        (72, Routing(6, True, "sigmoid", num_groups=3, chosen_groups=1), True),
        (16, Routing(2, False, "sparsemixer", near=0.2), False),
        (1, Routing(1, False, "sigmoid"), False),
    ],
    ids=str,
)
def test_experts_are_chosen_by_one_kernel(
    monkeypatch: pytest.MonkeyPatch, experts: int, routing: Routing, has_bias: bool
) -> None:
    """Compares with torch's operators in float64, for numbers of experts that models have."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, experts, generator=generator) * 3
    bias = torch.randn(experts, generator=generator) / 8 if has_bias else None
    with (launches := Launches(monkeypatch)):
        weights, ids = TritonOps().choose_experts(logits, bias, routing)
    assert launches.names == ["_choose_kernel"]
    expected = PlainOps().choose_experts(logits.double(), None if bias is None else bias.double(), routing)
    assert ids.equal(expected[1])
    torch.testing.assert_close(weights.double(), expected[0], atol=1e-6, rtol=1e-5)
    assert torch.cat([TritonOps().choose_experts(row, bias, routing)[0] for row in logits.split(1)]).equal(weights)


def test_of_equal_experts_the_first_are_chosen() -> None:
    _, ids = TritonOps().choose_experts(torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]]), None, Routing(4, True))
    assert ids.tolist() == [[1, 2, 4, 0]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sparsemixer"])
def test_weights_of_a_token_that_has_overflowed_are_not_numbers(scoring: Scoring) -> None:
    logits = torch.zeros(3, 8)
    logits[0, 5], logits[1, 3] = torch.nan, torch.inf
    weights, _ = TritonOps().choose_experts(logits, None, Routing(2, True, scoring))
    assert weights.isnan().tolist() == [[True] * 2, [True] * 2, [False] * 2]
