"""Sampling and scoring over ranks that each have the logits of a part of the vocabulary; the ranks are threads here."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import torch

from engine_svc.native.library import kernels
from engine_svc.parallel.group import ParallelGroup
from engine_svc.parallel.shared_memory import SharedMemory
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import PositionLogprobs, TokenMasks
from engine_svc.sampling.choosers import Chooser, TorchChooser
from engine_svc.sampling.isolation import sample_rows
from engine_svc.sampling.logprobs import Alternatives
from engine_svc.sampling.native import NativeChooser
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from quire.sampling import LogitsProcessorCall, SamplingParameters
from tests.support.native import every_level, fastest_kernels, needs_native
from tests.support.plans import sampling_plan

T = TypeVar("T")

SECONDS = 60.0
ROWS = 12
CPU = torch.device("cpu")
LIMITS = (
    (0, 1.0, 0.0), (0, 1.0, 0.001), (0, 1.0, 0.3), (0, 1.0, 1.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (1000, 1.0, 0.0),
    (0, 0.9, 0.0), (0, 1e-6, 0.0), (0, 0.999, 0.0), (50, 0.8, 0.0), (7, 0.9, 0.05), (0, 0.6, 0.001),
)  # fmt: skip
PLANS = [
    SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    # Without randomness, or nearly, limits change little.
    for temperature, limits in ((0.0, LIMITS[::6]), (1e-5, LIMITS[1::4]), (0.7, LIMITS[::3]), (1.0, LIMITS),
                                (3.0, LIMITS[1::3]))
    for top_k, top_p, min_p in limits
]  # fmt: skip


class CountingGroup(ParallelGroup):
    """Records the bytes that its rank sends."""

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        vars(self).setdefault("sent", []).append(tensor.numel() * tensor.itemsize)
        return super().all_gather_last(tensor)


def at_once(ranks: int, size: int, each: Callable[[VocabularyPart], T]) -> list[T]:
    """Runs a call on ranks that share a vocabulary; returns each rank's result."""
    memory = mmap.mmap(-1, SharedMemory.size(ranks))

    def run(rank: int) -> T:
        shared = SharedMemory(memory, rank, ranks, fastest_kernels(), SECONDS)
        return each(VocabularyPart(size, CountingGroup(rank, ranks, cast("Any", "the threads"), shared=shared)))

    with ThreadPoolExecutor(ranks) as pool:
        return [future.result(SECONDS) for future in [pool.submit(run, rank) for rank in range(ranks)]]


def own(logits: torch.Tensor, part: VocabularyPart) -> torch.Tensor:
    return logits[:, part.first : part.first + part.count].contiguous()


def bytes_sent(part: VocabularyPart) -> int:
    return sum(vars(part.group)["sent"])


def positions(seed: int) -> list[int]:
    return [seed + row for row in range(ROWS)]


def of_all(chooser: Chooser, logits: torch.Tensor, seed: int) -> list[list[Any]]:
    return [each.tolist() for each in chooser.choose(logits, range(ROWS), positions(seed))]


def by_parts(choosers: Sequence[Chooser], logits: torch.Tensor, ranks: int, seed: int) -> tuple[list[list[Any]], int]:
    """Returns what all ranks choose alike, and the number of bytes that each sends for it."""

    def choose(part: VocabularyPart) -> tuple[list[list[Any]], int]:
        found = choosers[part.group.rank].choose_part(own(logits, part), part, range(ROWS), positions(seed))
        return [each.tolist() for each in found], bytes_sent(part)

    found = at_once(ranks, logits.shape[1], choose)
    assert all(each == found[0] for each in found)
    return found[0]


def make(chooser: Callable[[], Chooser], plan: SamplingParameters) -> Chooser:
    made = chooser()
    assert made.takes_parts(plan)
    for slot in range(ROWS):
        made.add(slot, SamplingParameters(temperature=0.0) if slot == 3 else plan, 2**63 + slot)
    return made


def broken(logits: torch.Tensor) -> torch.Tensor:
    """Makes some rows impossible to sample, one possible on the last rank only, and some with ties."""
    logits[0, 5], logits[1, -1], logits[2, 0] = torch.nan, torch.nan, torch.inf
    logits[4], logits[5, :-1] = -torch.inf, -torch.inf
    logits[6, 5:9], logits[6, -1] = 50.0, 50.0  # equal logits on several ranks
    logits[7] = logits[7].round()  # many equally likely tokens
    return logits


@every_level
@pytest.mark.parametrize("size", [40, 5000])
def test_tokens_are_those_of_one_rank(level: str, size: int) -> None:
    """Greedy and sampled tokens are the same, however the vocabulary is divided."""
    loaded = kernels(level)
    for number, plan in enumerate(PLANS):
        one, *choosers = [make(lambda: NativeChooser(ROWS, loaded), plan) for _ in range(4)]
        for ranks in (2, 3):
            logits = broken(torch.randn(ROWS, size, generator=torch.Generator().manual_seed(number)) * 3)
            assert by_parts(choosers, logits, ranks, number)[0] == of_all(one, logits, number), (plan, ranks)


@needs_native
def test_only_rows_whose_candidates_are_not_enough_are_gathered() -> None:
    """In such rows, top-p keeps nearly all tokens, or its cutoff lies almost exactly between two tokens."""
    size, plan = 8000, SamplingParameters(top_p=0.5)
    one, *choosers = [make(lambda: NativeChooser(ROWS, fastest_kernels()), plan) for _ in range(3)]
    logits = 12 * torch.randn(ROWS, size, generator=torch.Generator().manual_seed(0))
    found, enough = by_parts(choosers, logits, 2, 0)
    assert found == of_all(one, logits, 0)
    assert enough < 16 * ROWS + ROWS * (256 * 8 + 8) + 1
    logits[1] = logits[1] / 1000
    logits[2], logits[2, :2] = -200.0, 0.0  # two tokens with a probability of 0.5 each
    found, more = by_parts(choosers, logits, 2, 0)
    assert found == of_all(one, logits, 0)
    assert more == enough + 2 * size // 2 * 4


@needs_native
def test_by_torch_the_likeliest_ones_are() -> None:
    one, *choosers = [make(lambda: TorchChooser(ROWS, CPU), PLANS[0]) for _ in range(4)]
    logits = broken(torch.randn(ROWS, 300, generator=torch.Generator().manual_seed(0)))
    logits[6], logits[7] = torch.randn(300), torch.randn(300)
    assert by_parts(choosers, logits, 3, 0)[0] == of_all(one, logits, 0)
    assert not one.takes_parts(PLANS[-1])


@needs_native
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_scores_are_those_of_one_rank(kind: str, is_normalised: bool) -> None:
    """Covers more alternatives than a rank has tokens, and named tokens that only some ranks have."""
    size = 50
    chooser = NativeChooser(1, fastest_kernels()) if kind == "native" else TorchChooser(1, CPU)
    logits = broken(torch.randn(ROWS, size, generator=torch.Generator().manual_seed(0)))
    if kind == "torch":
        logits[5:8] = torch.randn(3, size)  # torch may return any of several equal ones
    wanted = [Alternatives(3 * row, (0, 17, 49) if row % 2 else ()) for row in range(ROWS)]
    token_ids = torch.arange(ROWS) * 4
    whole = chooser.score(logits, token_ids, wanted, is_normalised).read()
    for found in at_once(
        3, size, lambda part: chooser.score(own(logits, part), token_ids, wanted, is_normalised, part).read()
    ):
        for ours, theirs in zip(found, whole, strict=True):
            assert (ours.token_ids, ours.rank) == (theirs.token_ids, theirs.rank)
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


CHANGES: list[dict[str, Any]] = [
    {"logit_bias": ((3, 8.0), (40, 9.0), (99, 7.0)), "top_k": 4},
    {"presence_penalty": 2.0, "repetition_penalty": 1.5, "logprobs": 5},
    {"min_tokens": 30, "suppress_token_ids": (0, 50, 99), "temperature": 0.0},
    {"allowed_token_ids": (1, 33, 34, 66, 67, 98), "top_p": 0.8},
    {"bad_words": ((7, 8), (90,)), "logprobs": 0},
    {"follows_grammar": True, "temperature": 2.0, "logprobs": 2},
    {"frequency_penalty": 1.0, "min_p": 0.1, "logprob_token_ids": (2, 98), "logprobs": 2},
    {"logprobs": 4, "top_p": 0.9},
]


def make_sampler(size: int) -> Sampler:
    sampler = Sampler(len(CHANGES), size, CPU, kernels=fastest_kernels())
    for slot, wanted in enumerate(CHANGES):
        sampler.add(slot, sampling_plan(**wanted, seed=slot), [7, 90, 4, 7], 2)
    return sampler


def steps(sampler: Sampler, size: int, part: VocabularyPart | None) -> list[tuple[list[int], list[PositionLogprobs]]]:
    """Runs several steps, with each slot's sampling state carried over."""
    found = []
    allowed = np.zeros((1, -(-size // 32) * 4), np.uint8)
    allowed[0, [0, 4, 5, 12]] = 0b10110
    slots = list(range(len(CHANGES)))
    for step in range(4):
        logits = torch.randn(len(CHANGES), size, generator=torch.Generator().manual_seed(step)) * 2
        rows = SampledRows(slots, [4 + step] * len(CHANGES))
        assert sampler.takes_parts(rows)
        given = logits if part is None else own(logits, part)
        output = sampler.sample(given, rows, TokenMasks([5], allowed.tobytes()), part)
        found.append((output.token_ids.tolist(), list(output.logprobs().values())))
    return found


@needs_native
def test_each_rank_changes_its_own_logits() -> None:
    """With everything that changes logits, over several steps, tokens and scores equal those of one rank."""
    size = 100
    whole = steps(make_sampler(size), size, None)
    for found in at_once(3, size, lambda part: steps(make_sampler(size), size, part)):
        for (ours, our_scores), (theirs, their_scores) in zip(found, whole, strict=True):
            assert ours == theirs
            for one, other in zip(our_scores, their_scores, strict=True):
                assert (one.token_ids, one.rank) == (other.token_ids, other.rank)
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@needs_native
def test_a_row_that_cannot_be_sampled_fails_alone_on_all_ranks() -> None:
    """Here, the row cannot be sampled because its grammar's mask is too short."""
    size = 100
    rows = SampledRows([5, 0], [4, 4])
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(0))

    def sample(part: VocabularyPart) -> tuple[list[list[int]], set[int]]:
        outputs, failed = sample_rows(make_sampler(size), own(logits, part), rows, TokenMasks([5], b"\0" * 4), part)
        return [output.token_ids.tolist() for output in outputs], set(failed)

    (alone,), _ = sample_rows(make_sampler(size), logits[1:].clone(), rows.take([1]))
    assert at_once(2, size, sample) == [([alone.token_ids.tolist()], {5})] * 2


@needs_native
@pytest.mark.parametrize(
    "wanted",
    [
        {"top_k": 2000}, {"logprobs": 2000}, {"logprobs": 1, "processed_logprobs": True},
        {"logits_processors": (LogitsProcessorCall("tests.support.processors.Nothing"),)},
    ],
)  # fmt: skip
def test_what_takes_all_logits_is_not_sampled_by_parts(wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine_svc.sampling.stages.custom_processors.make_processor", lambda call: cast("Any", object())
    )
    sampler = Sampler(2, 3000, CPU, kernels=fastest_kernels())
    sampler.add(0, sampling_plan(), [1], 1)
    sampler.add(1, sampling_plan(**wanted), [1], 1)
    assert sampler.takes_parts(SampledRows([0], [1]))
    assert not sampler.takes_parts(SampledRows([0, 1], [1, 1]))
