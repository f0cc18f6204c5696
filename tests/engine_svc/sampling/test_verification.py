"""Runs of drafted tokens, sampled at once or round by round, against tokens sampled one after the other."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_svc.plan import SamplingPlan, TokenMasks
from engine_svc.sampling.acceptance import TypicalAcceptance
from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.verification import Runs, read_runs, sample_runs
from tests.support.native import AVAILABLE, fastest_kernels, needs_native
from tests.support.plans import join_masks, masks, sampling_plan

SIZE = 9
CPU = torch.device("cpu")


class Drafted:
    """A sequence with its drafts in a step."""

    def __init__(self, plan: SamplingPlan, known: list[int], drafts: Sequence[int]) -> None:
        self.plan = plan
        self.known = known
        self.drafts = [*drafts, NO_DRAFT]


def logits_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed)) * 2


def sampler_of(sequences: Sequence[Drafted], native: bool = False) -> Sampler:
    sampler = Sampler(len(sequences), SIZE, CPU, kernels=fastest_kernels() if native else None)
    for slot, sequence in enumerate(sequences):
        sampler.add(slot, sequence.plan, sequence.known, 1)
    return sampler


def rows_of(sequences: Sequence[Drafted]) -> SampledRows:
    places = [
        (slot, len(sequence.known) + offset, draft, offset)
        for slot, sequence in enumerate(sequences)
        for offset, draft in enumerate(sequence.drafts)
    ]
    return SampledRows(*map(list, zip(*places, strict=True)))


def run(
    sampler: Sampler, sequences: Sequence[Drafted], logits: torch.Tensor, step: TokenMasks | None = None
) -> tuple[Runs, dict[int, str]]:
    outputs, failed = sample_runs(sampler, logits.clone(), rows_of(sequences), step)
    return read_runs(outputs), failed


def one_by_one(sequences: Sequence[Drafted], logits: torch.Tensor) -> Runs:
    """Computes the runs with a sampler that knows nothing of drafts."""
    sampler, found, row = sampler_of(sequences), Runs(), 0
    for slot, sequence in enumerate(sequences):
        for offset, draft in enumerate(sequence.drafts):
            output = sampler.sample(
                logits[row + offset : row + offset + 1].clone(), SampledRows([slot], [len(sequence.known) + offset])
            )
            token_id = int(output.token_ids[0])
            found.token_ids.setdefault(slot, []).append(token_id)
            if output.scores:
                found.logprobs.setdefault(slot, []).append(output.logprobs()[0])
            if token_id != draft:
                break
        row += len(sequence.drafts)
    return found


PARTS: list[dict[str, Any]] = [
    {"frequency_penalty": 1.5}, {"bad_words": ((1, 2), (3,), (2, 2, 4))}, {"logprobs": 2}, {"top_k": 3}, {"top_p": 0.7},
    {"min_p": 0.2}, {"logit_bias": ((4, 2.0),)}, {"min_tokens": 4, "suppress_token_ids": (0, 5)}, {"temperature": 0.0},
    {"allowed_token_ids": (1, 2, 3)}, {"logprobs": 1, "processed_logprobs": True}, {"repetition_penalty": 1.7},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(25))
def test_runs_are_what_comes_one_by_one(seed: int) -> None:
    """Holds whatever is drafted, by torch and by the C++ kernels; with each round, more drafts are right."""
    choose = random.Random(seed)
    sequences = []
    for _ in range(5):
        fields: dict[str, Any] = {"seed": choose.getrandbits(40)}
        for part in choose.sample(PARTS, choose.randrange(4)):
            fields |= part
        known = [choose.randrange(SIZE) for _ in range(choose.randrange(1, 7))]
        sequences.append(Drafted(sampling_plan(**fields), known, [choose.randrange(SIZE)] * choose.randrange(5)))
    logits = logits_of(sum(len(sequence.drafts) for sequence in sequences), seed)
    for _ in range(5):  # a wrong draft becomes right in each round
        expected = one_by_one(sequences, logits)
        for native in (False, True) if AVAILABLE else (False,):
            found, failed = run(sampler_of(sequences, native), sequences, logits)
            assert not failed
            assert not found.failed
            assert found.token_ids == expected.token_ids
            for slot, positions in expected.logprobs.items():
                for one, other in zip(found.logprobs[slot], positions, strict=True):
                    assert (one.token_ids, one.rank) == (other.token_ids, other.rank)
                    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        for slot, tokens in expected.token_ids.items():
            at = len(tokens) - 1
            if sequences[slot].drafts[at] != NO_DRAFT:
                sequences[slot].drafts[at] = tokens[at]


def test_rows_come_together_unless_a_stage_goes_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass has most rows; those of sequential stages follow one at a time, as long as drafts are right."""
    passes: list[int] = []
    sample = Sampler.sample

    def note(self: Sampler, logits: torch.Tensor, rows: SampledRows, *others: Any) -> Any:
        passes.append(len(rows))
        return sample(self, logits, rows, *others)

    monkeypatch.setattr(Sampler, "sample", note)
    logits = torch.zeros(11, SIZE)
    logits[:, 1] = 5.0
    plain, other = sampling_plan(temperature=0.0, top_k=3, min_tokens=1), GREEDY
    sequences = [Drafted(plain, [0], [1, 1]), Drafted(PENALISED, [0], [1, 1, 5]), Drafted(other, [0], [7]),
                 Drafted(PENALISED, [0], [5])]  # fmt: skip
    found, _ = run(sampler_of(sequences), sequences, logits)
    assert {slot: len(tokens) for slot, tokens in found.token_ids.items()} == {0: 3, 1: 3, 2: 1, 3: 1}
    assert passes == [3 + 1 + 2 + 1, 1, 1]


GREEDY = sampling_plan(temperature=0.0)
PENALISED = sampling_plan(temperature=0.0, presence_penalty=0.5)


@pytest.mark.parametrize("plan", [GREEDY, PENALISED])
def test_what_breaks_behind_a_wrong_draft_breaks_nobody(plan: SamplingPlan) -> None:
    """Broken logits after a wrong draft are ignored, and those before it fail their own sequence."""
    logits = torch.zeros(6, SIZE)
    logits[range(6), [1, 2, 3, 1, 2, 3]] = 5.0
    logits[2] = torch.nan
    logits[4] = torch.nan
    sequences = [Drafted(plan, [0], [1, 5]), Drafted(plan, [0], [1, 2])]
    found, failed = run(sampler_of(sequences), sequences, logits)
    assert not failed
    assert found.token_ids[0] == [1, 2]
    assert list(found.failed) == [1]


def test_what_raises_behind_a_wrong_draft_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, each sequence gets as far as its drafts are right, and fails alone if a row before that raises."""
    sample = Sampler.sample

    def refuse(self: Sampler, logits: torch.Tensor, rows: SampledRows, *others: Any) -> Any:
        if len(rows) > 1 or rows.num_tokens[0] == 3:
            raise ValueError("row")
        return sample(self, logits, rows, *others)

    monkeypatch.setattr(Sampler, "sample", refuse)
    logits = torch.zeros(9, SIZE)
    logits[:, 1] = 5.0
    for plan in (GREEDY, PENALISED):
        sequences = [Drafted(plan, [0], [1, 5]), Drafted(GREEDY, [0], [1, 1]), Drafted(GREEDY, [0], [5, 1])]
        found, failed = run(sampler_of(sequences), sequences, logits)
        assert [found.token_ids[slot] for slot in (0, 2)] == [[1, 1], [1]]
        assert list(failed) == [1]


@pytest.mark.parametrize("plan", [GREEDY, PENALISED])
def test_each_position_has_its_own_mask(plan: SamplingPlan) -> None:
    """Masks go to the right rows even if some of the sequences have none."""
    followed = sampling_plan(temperature=0.0, presence_penalty=plan.parameters.presence_penalty, follows_grammar=True)
    sequences = [Drafted(followed, [0], [4, 6]), Drafted(plan, [0], [8, 8]), Drafted(followed, [0], [7])]
    step = join_masks([masks(SIZE, {slot: {each}}) for slot, each in [(0, 4), (0, 6), (0, 2), (2, 3), (2, 5)]])
    logits = torch.arange(float(SIZE)).repeat(8, 1)
    found, failed = run(sampler_of(sequences), sequences, logits, step)
    assert not failed
    assert found.token_ids == {0: [4, 6, 2], 1: [8, 8, 8], 2: [3]}


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
def test_typical_acceptance_takes_what_is_likely_enough(native: bool) -> None:
    """Drafts are accepted by definition, whatever changes the logits; greedy sequences take the likeliest tokens."""
    acceptance = TypicalAcceptance(0.09, 0.3)
    kernels = fastest_kernels() if native else None
    fields: list[dict[str, Any]] = [
        {}, {"temperature": 0.0}, {"temperature": 3.0}, {"top_k": 2}, {"logit_bias": ((4, 3.0),)},
        {"presence_penalty": 2.0},
    ]  # fmt: skip
    taken = 0
    for seed, (draft, each) in enumerate(itertools.product(range(SIZE), fields)):
        sequences = [Drafted(sampling_plan(seed=seed, logprobs=0, **each), [0, 4], [draft])]
        sampler = Sampler(1, SIZE, CPU, kernels=kernels, acceptance=acceptance)
        sampler.add(0, sequences[0].plan, sequences[0].known, 1)
        logits = logits_of(2, seed)
        found, _ = run(sampler, sequences, logits)
        own = one_by_one(sequences, logits)
        probabilities = _processed(logits[0], each)
        entropy = -sum(p * math.log(p) for p in probabilities.tolist() if p > 0)
        is_taken = float(probabilities[draft]) > min(0.09, 0.3 * math.exp(-entropy)) and each.get("temperature") != 0.0
        assert found.token_ids[0][0] == (draft if is_taken else own.token_ids[0][0])
        assert len(found.token_ids[0]) == 1 + (found.token_ids[0][0] == draft)
        assert [position.token_ids[0] for position in found.logprobs[0]] == found.token_ids[0]
        taken += is_taken and own.token_ids[0][0] != draft
    assert taken


def _processed(logits: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    found = logits.double()
    for token_id, bias in fields.get("logit_bias", ()):
        found[token_id] += bias
    found[4] -= fields.get("presence_penalty", 0.0)
    probabilities = (found / (fields.get("temperature") or 1.0)).softmax(-1)
    if fields.get("top_k"):
        probabilities[probabilities < probabilities.topk(fields["top_k"]).values[-1]] = 0.0
    return probabilities / probabilities.sum()
