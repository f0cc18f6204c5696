"""Tokens that are chosen by ranks, each of which has the logits of a part of the vocabulary: ranks are threads here."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from engine_svc.native.library import kernels
from engine_svc.parallel.group import ParallelGroup
from engine_svc.parallel.shared_memory import SharedMemory
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.sampling.choosers import Chooser, TorchChooser
from engine_svc.sampling.native import NativeChooser
from quire.sampling import SamplingParameters
from tests.support.native import every_level, fastest_kernels, needs_native

SECONDS = 60.0
ROWS = 12
PLANS = [
    SamplingParameters(temperature=temperature, min_p=min_p)
    for temperature in (0.0, 1e-5, 0.7, 1.0, 3.0)
    for min_p in (0.0, 0.001, 0.3, 1.0)
]


def of_all(chooser: Chooser, logits: torch.Tensor, seed: int) -> list[list[Any]]:
    found = chooser.choose(logits, range(len(logits)), [seed + row for row in range(len(logits))])
    return [each.tolist() for each in found]


def by_parts(choosers: Sequence[Chooser], logits: torch.Tensor, cuts: Sequence[int], seed: int) -> list[list[Any]]:
    """What all ranks find, whose parts of the vocabulary end at these tokens."""
    ranks = len(cuts)
    memory = mmap.mmap(-1, SharedMemory.size(ranks))

    def choose(rank: int) -> list[list[Any]]:
        shared = SharedMemory(memory, rank, ranks, fastest_kernels(), SECONDS)
        group = ParallelGroup(rank, ranks, cast("Any", "the threads"), shared=shared)
        first = cuts[rank - 1] if rank else 0
        own = logits[:, first : cuts[rank]].contiguous()
        positions = [seed + row for row in range(len(logits))]
        found = choosers[rank].choose_part(
            own, VocabularyPart(first, cuts[rank] - first, group), range(len(logits)), positions
        )
        return [each.tolist() for each in found]

    with ThreadPoolExecutor(ranks) as pool:
        found = [future.result(SECONDS) for future in [pool.submit(choose, rank) for rank in range(ranks)]]
    assert all(each == found[0] for each in found)
    return found[0]


def make(chooser: Callable[[], Chooser], plan: SamplingParameters) -> Chooser:
    made = chooser()
    assert made.takes_parts(plan)
    for slot in range(ROWS):
        made.add(slot, SamplingParameters(temperature=0.0) if slot == 3 else plan, 2**63 + slot)
    return made


def broken(logits: torch.Tensor) -> torch.Tensor:
    """Rows of which nothing can be drawn, and one of which only the last part has anything."""
    logits[0, 5], logits[1, -1], logits[2, 0] = torch.nan, torch.nan, torch.inf
    logits[4], logits[5, :-1] = -torch.inf, -torch.inf
    logits[6, 5:9], logits[6, -1] = 50.0, 50.0  # the same, on several ranks
    return logits


@every_level
@pytest.mark.parametrize("size", [40, 5000])
def test_tokens_are_those_of_one_rank(level: str, size: int) -> None:
    """Greedy and drawn ones, whatever the ranks' shares."""
    loaded = kernels(level)
    for number, plan in enumerate(PLANS):
        one, *choosers = [make(lambda: NativeChooser(ROWS, loaded), plan) for _ in range(4)]
        for cuts in ((size // 2, size), (7, size // 3, size)):
            logits = broken(torch.randn(ROWS, size, generator=torch.Generator().manual_seed(number)) * 3)
            assert by_parts(choosers, logits, cuts, number) == of_all(one, logits, number), (plan, cuts)


@needs_native
def test_by_torch_the_likeliest_ones_are() -> None:
    one, *choosers = [make(lambda: TorchChooser(ROWS, torch.device("cpu")), PLANS[0]) for _ in range(4)]
    logits = broken(torch.randn(ROWS, 300, generator=torch.Generator().manual_seed(0)))
    logits[6] = torch.randn(300)
    assert by_parts(choosers, logits, (100, 200, 300), 0) == of_all(one, logits, 0)
    assert not one.takes_parts(PLANS[-1])


@needs_native
@pytest.mark.parametrize("wanted", [{"top_k": 5}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}])
def test_what_takes_all_logits_is_not_chosen_by_parts(wanted: dict[str, float]) -> None:
    chooser, drawn = NativeChooser(ROWS, fastest_kernels()), SamplingParameters(**cast("Any", wanted))
    assert not chooser.takes_parts(drawn)
    assert chooser.takes_parts(replace(drawn, temperature=0.0))
