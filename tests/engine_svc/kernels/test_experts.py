"""Rows by their experts: one kernel against the same by sorting."""

from __future__ import annotations

import pytest
import torch

from engine_svc.kernels.experts import sort_by_expert
from engine_svc.ops.triton import TritonOps
from tests.support.launches import Launches


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "tile"), [(1, 2, 4, 16), (40, 3, 7, 64), (700, 2, 3, 16), (9, 8, 20, 16)]
)
def test_rows_are_in_tiles_of_their_experts(tokens: int, chosen: int, experts: int, tile: int) -> None:
    ids = torch.randint(-1, experts, (tokens, chosen), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = ids[:, 0].clamp(max=1)  # some have many, and others none
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
    # Of those without an expert each is in a tile of none, once.
    left = rows[used:].flatten()
    assert left[left < found.num_rows].tolist() == torch.nonzero(ids.flatten() < 0)[:, 0].tolist()


@pytest.mark.parametrize("tokens", [1, 70])
def test_a_gpu_is_given_seven_kernels(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    product = TritonOps().experts(torch.randn(2, 16, 8), torch.randn(2, 8, 8))
    hidden, (weights, ids) = torch.randn(tokens, 8), torch.randn(tokens, 2).softmax(-1).topk(1)
    with (launches := Launches(monkeypatch)):
        product(hidden, weights, ids)
    of_products = ["new_zeros", "_grouped_kernel"]
    assert launches.names == ["_sort_kernel", *of_products, "_gated_kernel", *of_products, "_add_kernel"]
