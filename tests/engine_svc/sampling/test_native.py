"""The C++ sampling kernels at each instruction level, against their definition in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine_svc.native.library import kernels
from engine_svc.sampling.choosers import TorchChooser
from engine_svc.sampling.logprobs import Alternatives
from engine_svc.sampling.native import NativeChooser
from engine_svc.sampling.noise import exponentials, row_keys
from quire.sampling import SamplingParameters
from tests.support.for_each import for_each
from tests.support.native import EMULATED, every_level

ROWS = 12
LIMITS = (
    (0, 1.0, 0.0), (0, 1.0, 0.02), (0, 1.0, 1.0), (1, 1.0, 0.0), (20, 1.0, 0.0), (1500, 1.0, 0.0), (0, 0.9, 0.0),
    (0, 1e-6, 0.0), (0, 0.999, 0.0), (50, 0.8, 0.0), (2**31 - 1, 0.5, 0.0), (7, 0.9, 0.05), (0, 0.6, 0.001),
)  # fmt: skip
PLANS = [
    SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    # Without randomness, or nearly, limits change little.
    for temperature, limits in ((0.0, LIMITS[::6]), (1e-5, LIMITS[1::4]), (0.7, LIMITS), (2.0, LIMITS[::3]))
    for top_k, top_p, min_p in limits
][:: 3 if EMULATED else 1]  # fmt: skip


def spread(factor: float) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randn(ROWS, size) * factor


def like_a_language_model(size: int) -> torch.Tensor:
    return -1.5 * (torch.stack([torch.randperm(size) for _ in range(ROWS)]) + 1.0).log()


def tied(size: int) -> torch.Tensor:
    """Returns few distinct values, so that equal ones are on both sides of the cutoff."""
    return torch.randint(-3, 4, (ROWS, size)).float() / 2


def all_equal(size: int) -> torch.Tensor:
    return torch.full((ROWS, size), -7.5)


def peaked(size: int) -> torch.Tensor:
    logits = torch.randn(ROWS, size)
    logits[range(ROWS), torch.randint(size, (ROWS,))] = 60.0
    return logits


def masked(size: int) -> torch.Tensor:
    """Masks logits as a grammar does, leaving a few tokens, or only one."""
    logits = torch.randn(ROWS, size)
    for row in range(ROWS):
        logits[row, torch.randperm(size)[min(size - 1, row) + 1 :]] = -torch.inf
    return logits


def of_both_zeros(size: int) -> torch.Tensor:
    return torch.where(torch.rand(ROWS, size) < 0.5, -0.0, 0.0)


def far(size: int) -> torch.Tensor:
    logits = torch.randn(ROWS, size) * 1e30
    logits[:, size // 2] = 1e32
    return logits


SHAPES = [
    spread(0.0), spread(0.3), spread(3.0), like_a_language_model, tied, all_equal, peaked, masked, of_both_zeros, far,
]  # fmt: skip


def drawn_by_definition(logits: torch.Tensor, wanted: SamplingParameters, numbers: torch.Tensor) -> int:
    """Keeps the likeliest tokens, the smallest id first among equals, and draws one.

    Args:
        numbers: a random number for each token.
    """
    wide = logits.double()
    if wanted.is_greedy:
        return int((wide == wide.max()).nonzero()[0])
    weights = ((wide - wide.max()) / wanted.temperature).exp()
    weights[weights < wanted.min_p] = 0.0
    order = torch.arange(len(weights))
    if wanted.top_k or wanted.top_p < 1.0:
        order = weights.sort(descending=True, stable=True).indices
    weights = weights[order]
    if wanted.top_k:
        weights[wanted.top_k :] = 0.0
    if wanted.top_p < 1.0:
        before = weights.cumsum(0) - weights
        before[0] = -1.0
        weights[before >= wanted.top_p * weights.sum()] = 0.0
    return int(order[(weights / numbers[order]).argmax()])


def numbers_of(seeds: list[int], positions: list[int], size: int) -> torch.Tensor:
    keys = row_keys(np.array(seeds, np.uint64), np.array(positions, np.uint64))
    return exponentials(torch.from_numpy(keys), torch.arange(size))


@functools.lru_cache(1)  # levels are tested one after the other
def drawn_of(shape: int, size: int) -> tuple[torch.Tensor, list[list[int]]]:
    """Returns logits, and the token that each plan draws in each row."""
    torch.manual_seed(size)
    logits, positions = SHAPES[shape](size), list(range(ROWS))
    numbers = numbers_of(positions, positions, size)
    drawn = [
        [drawn_by_definition(row, plan, each) for row, each in zip(logits, numbers, strict=True)] for plan in PLANS
    ]
    return logits, drawn


@every_level
@for_each("shape", range(len(SHAPES)))
@pytest.mark.parametrize("size", [1, 30, 3000])
def test_draws_as_defined(level: str, shape: int, size: int) -> None:
    (logits, drawn), positions = drawn_of(shape, size), list(range(ROWS))
    chooser, same, count = NativeChooser(ROWS, kernels(level)), 0, 0
    for plan, expected in zip(PLANS, drawn, strict=True):
        for slot in range(ROWS):
            chooser.add(slot, plan, slot)
        found, broken = chooser.choose(logits.clone(), positions, positions)
        assert not broken.any()
        same += sum(one == other for one, other in zip(found.tolist(), expected, strict=True))
        count += ROWS
    assert same >= count - 2  # except rounding at a boundary


@every_level
def test_rows_do_not_see_each_other(level: str) -> None:
    """A single row is split into pieces and many rows are not, which must not matter; the size is no round number."""
    torch.manual_seed(0)
    size = 70_001
    logits = torch.cat([shape(size)[:7] for shape in (spread(0.3), spread(3.0), like_a_language_model)])
    chooser = NativeChooser(len(PLANS), kernels(level))
    for slot, plan in enumerate(PLANS):
        chooser.add(slot, plan, 5)
    slots = [row * 5 % len(PLANS) for row in range(len(logits))]
    together, _ = chooser.choose(logits, slots, slots)
    for row, slot in enumerate(slots):
        alone, _ = chooser.choose(logits[row : row + 1], [slot], [slot])
        assert alone[0] == together[row]


@every_level
def test_noise_is_that_of_python(level: str) -> None:
    """All tokens are equally likely, so the one with the smallest random number is drawn."""
    seeds, positions = [0, 1, 2**64 - 1, 0x9E3779B97F4A7C15], [0, 1, 2**31, 123_456_789_012]
    chooser = NativeChooser(4, kernels(level))
    for slot, seed in enumerate(seeds):
        chooser.add(slot, SamplingParameters(), seed)
    found, _ = chooser.choose(torch.zeros(4, 2**17), list(range(4)), positions)
    assert found.tolist() == numbers_of(seeds, positions, 2**17).argmin(-1).tolist()


@every_level
@pytest.mark.parametrize("dirt", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [20, 5000])
def test_what_cannot_be_sampled_is_broken_alone(level: str, dirt: float, size: int) -> None:
    torch.manual_seed(0)
    chooser = NativeChooser(len(PLANS), kernels(level))
    for slot, plan in enumerate(PLANS):
        chooser.add(slot, plan, slot)
    slots = list(range(len(PLANS)))
    logits = torch.randn(len(PLANS), size)
    whole, _ = chooser.choose(logits, slots, slots)
    logits[::2, slice(None) if dirt == -torch.inf else size - 1] = dirt
    found, broken = chooser.choose(logits, slots, slots)
    assert broken[::2].all()
    assert not broken[1::2].any()
    assert (found[::2] == 0).all()
    assert found[1::2].equal(whole[1::2])
    scored = chooser.score(logits, found, [Alternatives(3)] * len(logits), is_normalised=True).read()
    assert all(np.isfinite(position.logprobs).all() for position in scored)


def are_near(ours: list[float], theirs: list[float]) -> bool:
    """Like pytest.approx, which takes long for thousands of numbers."""
    found, expected = np.array(ours), np.array(theirs)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(found - expected) <= np.maximum(1e-5, 1e-6 * np.abs(expected))
    return len(ours) == len(theirs) and bool(((found == expected) | (is_near & np.isfinite(expected))).all())


@functools.lru_cache(1)
def scored_of(shape: int, size: int, is_normalised: bool) -> tuple[Any, ...]:
    """Returns logits, token ids, the wanted alternatives, their numbers, and the scores by torch in float64."""
    torch.manual_seed(0)
    logits, token_ids = SHAPES[shape](size), torch.randint(size, (ROWS,))
    counts = [2 * row if row < ROWS - 1 else size for row in range(ROWS)]
    wanted = [Alternatives(count, (0, 3, size - 1) if row % 3 else ()) for row, count in enumerate(counts)]
    chooser = TorchChooser(1, torch.device("cpu"))
    return logits, token_ids, wanted, counts, chooser.score(logits.double(), token_ids, wanted, is_normalised).read()


@every_level
@pytest.mark.parametrize("is_normalised", [True, False])
@for_each("shape", range(len(SHAPES)))
@pytest.mark.parametrize("size", [30, 3000])
def test_scores_as_torch(level: str, shape: int, size: int, is_normalised: bool) -> None:
    logits, token_ids, wanted, counts, expected = scored_of(shape, size, is_normalised)
    found = NativeChooser(1, kernels(level)).score(logits.clone(), token_ids, wanted, is_normalised).read()
    for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.rank == theirs.rank
        assert are_near(ours.logprobs, theirs.logprobs)
        best = slice(1, 1 + counts[row])
        stable = logits[row].sort(descending=True, stable=True).indices[: counts[row]]
        assert ours.token_ids[best] == stable.tolist()
        assert ours.token_ids[best.stop :] == theirs.token_ids[best.stop :]
