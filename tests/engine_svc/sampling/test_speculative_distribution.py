"""Sampling with drafts has the same distribution as without: chi-squared tests over all short outputs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_svc.plan import TokenMasks
from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.verification import read_runs, sample_runs
from tests.support.native import fastest_kernels, needs_native
from tests.support.plans import join_masks, masks, sampling_plan

SIZE, LENGTH, SEQUENCES = 5, 3, 2000
PROMPT = [0]
Probabilities = npt.NDArray[np.float64]
# A toy model: the logits after each token.
MODEL = np.random.default_rng(3).normal(scale=1.2, size=(SIZE, SIZE))


@dataclass(frozen=True)
class Case:
    """Sampling parameters, and their effect on the logits after the known tokens."""

    fields: dict[str, Any]
    process: Callable[[Probabilities, list[int]], Probabilities] = lambda logits, known: logits
    keep: Callable[[Probabilities], Probabilities] = lambda probabilities: probabilities
    allowed: Callable[[list[int]], set[int]] | None = None  # the grammar's tokens

    def distribution(self, known: list[int]) -> Probabilities:
        logits = self.process(MODEL[known[-1]].copy(), known) / self.fields.get("temperature", 1.0)
        if self.allowed:
            logits[[each for each in range(SIZE) if each not in self.allowed(known)]] = -np.inf
        probabilities = np.exp(logits - logits.max())
        probabilities = self.keep(probabilities / probabilities.sum())
        return probabilities / probabilities.sum()


def penalised(logits: Probabilities, known: list[int]) -> Probabilities:
    output = Counter(known[len(PROMPT) :])
    seen = sorted({*known})
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / 1.5, logits[seen] * 1.5)
    for token_id, count in output.items():
        logits[token_id] -= 0.4 * count + 0.3
    return logits


def biased(logits: Probabilities, known: list[int]) -> Probabilities:
    logits[2] += 1.5
    logits[0] -= 0.7
    return logits


def without_bad_words(logits: Probabilities, known: list[int]) -> Probabilities:
    logits[4] = -np.inf
    if known[-1] == 1:
        logits[2] = -np.inf
    return logits


def top_3(probabilities: Probabilities) -> Probabilities:
    return np.where(probabilities >= np.sort(probabilities)[-3], probabilities, 0.0)


def nucleus(probabilities: Probabilities) -> Probabilities:
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = np.zeros(SIZE)
    kept[order] = probabilities[order] * (before < 0.8)
    return kept


def likely(probabilities: Probabilities) -> Probabilities:
    return np.where(probabilities >= 0.1 * probabilities.max(), probabilities, 0.0)


def another(known: list[int]) -> set[int]:
    """A grammar in which no token occurs twice in a row."""
    return set(range(SIZE)) - {known[-1]}


CASES = {
    "plain": Case({}),
    "cold": Case({"temperature": 0.4}),
    "hot": Case({"temperature": 2.5}),
    "top-k": Case({"top_k": 3}, keep=top_3),
    "top-p": Case({"top_p": 0.8, "temperature": 1.3}, keep=nucleus),
    "min-p": Case({"min_p": 0.1, "temperature": 1.5}, keep=likely),
    "bias": Case({"logit_bias": ((2, 1.5), (0, -0.7)), "temperature": 0.8}, biased),
    "penalties": Case(
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3}, penalised
    ),
    "penalties-top-k": Case(
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3, "top_k": 3}, penalised, top_3
    ),
    "bad-words": Case({"bad_words": ((4,), (1, 2))}, without_bad_words),
    "grammar": Case({"follows_grammar": True}, allowed=another),
    "grammar-penalties": Case(
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3, "follows_grammar": True},
        penalised, allowed=another,
    ),
}  # fmt: skip


class Decoding:
    """Many sequences of one case, each with its own seed, and with drafts that ignore it."""

    def __init__(self, case: Case, kernels: Any) -> None:
        self.case = case
        self.sampler = Sampler(SEQUENCES, SIZE, torch.device("cpu"), kernels=kernels)
        self.known = [[*PROMPT] for _ in range(SEQUENCES)]
        self.choose = random.Random(7)
        self.steps = 0
        for slot in range(SEQUENCES):
            seed = self.choose.getrandbits(60)
            self.sampler.add(slot, sampling_plan(seed=seed, **case.fields), self.known[slot], len(PROMPT))

    def step(self) -> None:
        """Runs a step of all unfinished sequences; drafts are the likeliest tokens, or random ones."""
        self.steps += 1
        slots = [slot for slot in range(SEQUENCES) if len(self.known[slot]) < len(PROMPT) + LENGTH]
        drafts = {slot: self.drafts(self.known[slot]) for slot in slots}
        places = [
            (slot, len(self.known[slot]) + offset, draft, offset)
            for slot in slots
            for offset, draft in enumerate([*drafts[slot], NO_DRAFT])
        ]
        last = [[*self.known[slot], *drafts[slot]][len(self.known[slot]) + offset - 1] for slot, _, _, offset in places]
        logits = torch.from_numpy(MODEL[last]).float()
        rows = SampledRows(*map(list, zip(*places, strict=True)))
        outputs, failed = sample_runs(self.sampler, logits, rows, self.masks(drafts))
        assert not failed
        for slot, run in read_runs(outputs).token_ids.items():
            self.known[slot] += run

    def drafts(self, known: list[int]) -> list[int]:
        found = [*known]
        for _ in range(self.choose.randrange(3)):
            allowed = sorted(self.case.allowed(found)) if self.case.allowed else [*range(SIZE)]
            likeliest = max(allowed, key=lambda each: MODEL[found[-1]][each])
            found.append(likeliest if self.choose.random() < 0.6 else self.choose.choice(allowed))
        return found[len(known) :]

    def masks(self, drafts: dict[int, list[int]]) -> TokenMasks | None:
        allowed = self.case.allowed
        if allowed is None:
            return None
        return join_masks([
            masks(SIZE, {slot: allowed([*self.known[slot], *tokens[:offset]])})
            for slot, tokens in drafts.items()
            for offset in range(len(tokens) + 1)
        ])  # fmt: skip


def chance(found: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Returns the probability of frequencies that deviate at least as much; rare outputs are counted together."""
    common = [each for each, share in expected.items() if share * SEQUENCES >= 5]
    counts = [found[each] for each in common]
    shares = [expected[each] for each in common]
    counts, shares = [*counts, SEQUENCES - sum(counts)], [*shares, max(1e-12, 1 - sum(shares))]
    if shares[-1] * SEQUENCES < 5:
        counts[-2:], shares[-2:] = [sum(counts[-2:])], [sum(shares[-2:])]
    statistic = sum(
        (count - SEQUENCES * share) ** 2 / (SEQUENCES * share) for count, share in zip(counts, shares, strict=True)
    )
    degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


# Those in which torch's kernels choose tokens otherwise; stages before that are the same for both.
OF_TORCH = ("plain", "hot", "top-k", "top-p", "min-p", "penalties-top-k")


@pytest.mark.parametrize(
    ("name", "native"),
    [
        *[pytest.param(name, True, marks=needs_native, id=f"{name}-native") for name in CASES],
        *[pytest.param(name, False, id=f"{name}-torch") for name in OF_TORCH],
    ],
)
def test_outputs_have_the_distribution_of_plain_sampling(name: str, native: bool) -> None:
    case = CASES[name]
    decoding = Decoding(case, fastest_kernels() if native else None)
    while any(len(known) < len(PROMPT) + LENGTH for known in decoding.known):
        decoding.step()
    expected = {}
    for output in itertools.product(range(SIZE), repeat=LENGTH):
        known, share = [*PROMPT], 1.0
        for token_id in output:
            share *= case.distribution(known)[token_id]
            known.append(token_id)
        expected[output] = share
    found = Counter(tuple(known[len(PROMPT) :][:LENGTH]) for known in decoding.known)
    assert not [each for each in found if expected[each] == 0]
    assert chance(found, expected) > 1e-3


def test_the_test_notices_another_distribution() -> None:
    """The test would notice a sampler that accepts drafts too often."""
    expected = {(token_id,): 1 / SIZE for token_id in range(SIZE)}
    found = Counter({(token_id,): SEQUENCES // SIZE for token_id in range(SIZE)})
    assert chance(found, expected) > 0.99
    found[0,] += SEQUENCES // 20
    found[1,] -= SEQUENCES // 20
    assert chance(found, expected) < 1e-3
