"""The sampler against definitions in float64, and against the frequencies they predict."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.noise import exponentials, row_keys
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.truncation import draw
from tests.support.native import fastest_kernels, needs_native
from tests.support.plans import sampling_plan

VOCAB_SIZE = 12
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5, -3.0, -9.0])
DRAWS = 20_000


class SamplerFor(Protocol):
    """Makes a sampler with a plan in each slot, for sequences that have the given tokens."""

    def __call__(
        self, plans: list[SamplingPlan], token_ids: list[int] | None = None, num_prompt: int = 0
    ) -> Sampler: ...


@pytest.fixture(params=["torch", pytest.param("native", marks=needs_native)])
def sampler_for(request: pytest.FixtureRequest) -> SamplerFor:
    kernels = fastest_kernels() if request.param == "native" else None

    def make(plans: list[SamplingPlan], token_ids: list[int] | None = None, num_prompt: int = 0) -> Sampler:
        sampler = Sampler(len(plans), VOCAB_SIZE, torch.device("cpu"), kernels=kernels)
        for slot, plan in enumerate(plans):
            sampler.add(slot, plan, token_ids or [0], num_prompt if token_ids else 1)
        return sampler

    return make


def frequencies(sampler_for: SamplerFor, plan: SamplingPlan, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    """Returns how often each token is drawn, over many positions with one seed."""
    counts = torch.zeros(VOCAB_SIZE, dtype=torch.float64)
    sampler = sampler_for([plan])
    rows = 500
    for start in range(1, DRAWS, rows):
        output = sampler.sample(logits.repeat(rows, 1), SampledRows([0] * rows, list(range(start, start + rows))))
        counts += torch.bincount(output.token_ids, minlength=VOCAB_SIZE)
    return counts / counts.sum()


def expected(temperature: float, keep: torch.Tensor | None = None) -> torch.Tensor:
    probabilities = torch.softmax(LOGITS.double() / temperature, 0)
    if keep is not None:
        probabilities = probabilities * keep
    return probabilities / probabilities.sum()


def kept(warper: Any, temperature: float = 1.0) -> torch.Tensor:
    """Returns which tokens Transformers' own filter keeps."""
    return torch.isfinite(warper(torch.zeros(1, 1, dtype=torch.long), (LOGITS / temperature)[None]))[0]


@pytest.mark.parametrize(
    ("fields", "keep"),
    [
        ({}, None),
        ({"temperature": 0.5}, None),
        ({"temperature": 1.7}, None),
        ({"top_k": 3}, kept(transformers.TopKLogitsWarper(3))),
        ({"top_k": 100}, None),
        ({"top_p": 0.7}, kept(transformers.TopPLogitsWarper(0.7))),
        ({"top_p": 0.01}, kept(transformers.TopPLogitsWarper(0.01))),
        ({"temperature": 2.0, "top_p": 0.7}, kept(transformers.TopPLogitsWarper(0.7), 2.0)),
        ({"min_p": 0.2}, kept(transformers.MinPLogitsWarper(0.2))),
        ({"min_p": 0.2, "top_k": 2}, kept(transformers.TopKLogitsWarper(2))),
    ],
)
def test_distribution(sampler_for: SamplerFor, fields: dict[str, Any], keep: torch.Tensor | None) -> None:
    wanted = expected(fields.get("temperature", 1.0), keep)
    found = frequencies(sampler_for, sampling_plan(seed=11, **fields))
    assert (found[wanted == 0] == 0).all()
    deviation = (wanted * (1 - wanted) / DRAWS).sqrt()
    assert ((found - wanted).abs() <= 5 * deviation + 1e-9).all()


def test_rows_do_not_see_each_other(sampler_for: SamplerFor) -> None:
    """The same slot state and position give the same token whatever else is in the batch."""
    plans = [
        sampling_plan(temperature=0.0), sampling_plan(seed=5, top_k=4), sampling_plan(seed=6, top_p=0.9, min_p=0.05),
        sampling_plan(seed=7, presence_penalty=1.0, logit_bias=((3, 2.0),)), sampling_plan(seed=8),
    ]  # fmt: skip
    together = sampler_for(plans).sample(LOGITS.repeat(5, 1), SampledRows([0, 1, 2, 3, 4], [9, 10, 11, 12, 13]))
    for slot in range(5):
        alone = sampler_for(plans).sample(LOGITS[None].clone(), SampledRows([slot], [9 + slot]))
        assert alone.token_ids[0] == together.token_ids[slot]


def test_greedy_takes_the_likeliest(sampler_for: SamplerFor) -> None:
    assert (
        sampler_for([sampling_plan(temperature=0.0)]).sample(LOGITS[None].clone(), SampledRows([0], [1])).token_ids == 0
    )


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_as_transformers(sampler_for: SamplerFor, penalty: float) -> None:
    seen = [0, 5, 11]
    plan = sampling_plan(temperature=0.0, repetition_penalty=penalty, logprobs=0)
    logits = LOGITS[None].clone()
    sampler_for([plan], seen, num_prompt=2).sample(logits, SampledRows([0], [3]))
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    torch.testing.assert_close(logits, processor(torch.tensor([seen]), LOGITS[None].clone()))


def test_presence_and_frequency_count_output_only(sampler_for: SamplerFor) -> None:
    plan = sampling_plan(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
    logits = LOGITS[None].clone()
    sampler_for([plan], [0, 0, 1, 2, 2], num_prompt=2).sample(logits, SampledRows([0], [5]))
    change = torch.zeros(VOCAB_SIZE)
    change[1], change[2] = -0.75, -1.0
    torch.testing.assert_close(logits[0], LOGITS + change)


def test_penalties_count_what_is_sampled(sampler_for: SamplerFor) -> None:
    sampler = sampler_for([sampling_plan(temperature=0.0, frequency_penalty=2.0)])
    found = [
        int(sampler.sample(LOGITS[None].clone(), SampledRows([0], [position])).token_ids[0]) for position in range(1, 4)
    ]
    assert found == [0, 1, 2]


def test_logit_bias_and_suppressed_tokens(sampler_for: SamplerFor) -> None:
    plan = sampling_plan(temperature=0.0, logit_bias=((4, 100.0), (5, 90.0)), suppress_token_ids=(4,), min_tokens=2)
    sampler = sampler_for([plan])
    found = [
        int(sampler.sample(LOGITS[None].clone(), SampledRows([0], [position])).token_ids[0]) for position in (1, 2, 3)
    ]
    assert found == [5, 5, 4]


def test_logprobs_of_named_tokens_beside_rows_of_the_likeliest(sampler_for: SamplerFor) -> None:
    fields = [{"logprobs": 0, "logprob_token_ids": (11, 3, 3)}, {"logprobs": 2}, {}, {"logprobs": 1}]
    fields.append({"logprobs": 5, "logprob_token_ids": (7,)})
    sampler = sampler_for([sampling_plan(temperature=0.0, **each) for each in fields])
    found = sampler.sample(LOGITS.repeat(5, 1), SampledRows(list(range(5)), [1] * 5)).logprobs()
    expected = {0: [0, 11, 3, 3], 1: [0, 0, 1], 3: [0, 0], 4: [0, 7]}
    assert {slot: position.token_ids for slot, position in found.items()} == expected
    logprobs = LOGITS.double().log_softmax(0)
    for position in found.values():
        assert position.logprobs == pytest.approx(logprobs[position.token_ids].tolist(), abs=1e-6)


def test_logprobs_are_of_the_unmodified_logits(sampler_for: SamplerFor) -> None:
    plan = sampling_plan(temperature=0.0, logit_bias=((4, 100.0),), logprobs=2)
    output = sampler_for([plan]).sample(LOGITS[None].clone(), SampledRows([0], [1]))
    logprobs = LOGITS.double().log_softmax(0)
    assert output.logprobs()[0].token_ids == [4, 0, 1]
    assert output.logprobs()[0].rank == 5
    assert output.logprobs()[0].logprobs == pytest.approx(logprobs[[4, 0, 1]].tolist(), abs=1e-6)


def test_not_a_number_fails_its_sequence_only(sampler_for: SamplerFor) -> None:
    logits = LOGITS.repeat(2, 1)
    logits[0, 3] = torch.nan
    output = sampler_for([sampling_plan(temperature=0.0)] * 2).sample(logits, SampledRows([0, 1], [1, 1]))
    assert set(output.broken.read()) == {0}
    assert output.token_ids[1] == 0


def test_noise_is_philox() -> None:
    """Compares with a known answer published by the generator's authors, for key and counter zero."""
    zeros = row_keys(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    assert zeros.tolist() == [[0x6627E8D5, 0xE169C58D]]


def uniforms(seed: int, positions: list[int], token_ids: list[int]) -> npt.NDArray[np.float64]:
    """Returns [positions, tokens], in (0, 1)."""
    keys = row_keys(np.full(len(positions), seed, np.uint64), np.array(positions, np.uint64))
    return torch.exp(-exponentials(torch.from_numpy(keys), torch.tensor(token_ids))).numpy()


def test_noise_is_uniform_and_independent() -> None:
    """Covers the tokens of one position, the positions of one token, and neighboring positions and another seed."""
    count = 100_000
    tokens, positions = uniforms(42, [7], list(range(count)))[0], uniforms(42, list(range(count)), [7])[:, 0]
    others = uniforms(42, [8], list(range(count)))[0], uniforms(43, [7], list(range(count)))[0]
    for noise in (tokens, positions, *others):
        histogram = np.histogram(noise, bins=50, range=(0, 1))[0]
        chi_squared = ((histogram - count / 50) ** 2 / (count / 50)).sum()
        assert chi_squared < 95  # 49 degrees of freedom: p = 1e-4
        pairs = np.histogram2d(noise[:-1], noise[1:], bins=7, range=((0, 1), (0, 1)))[0]
        assert ((pairs - count / 49) ** 2 / (count / 49)).sum() < 95
    for other in (positions, *others):
        assert abs(np.corrcoef(tokens, other)[0, 1]) < 5 / count**0.5


def test_models_of_one_opinion_draw_the_same_token(sampler_for: SamplerFor) -> None:
    """They agree at least as often as (1 - d) / (1 + d), d being their distance (Daliri, Musco and Suresh 2024)."""
    size, rows = VOCAB_SIZE, 4000
    generator = torch.Generator().manual_seed(1)
    sampler = sampler_for([sampling_plan(seed=3)])
    for spread in (0.05, 0.3, 1.0):
        one = torch.randn(1, size, generator=generator)
        other = one + spread * torch.randn(1, size, generator=generator)
        distance = float((one.double().softmax(-1) - other.double().softmax(-1)).abs().sum() / 2)
        drawn = [sampler.guess(each.repeat(rows, 1), [0] * rows, list(range(rows))) for each in (one, other)]
        agreed = float((drawn[0] == drawn[1]).double().mean())
        assert agreed >= (1 - distance) / (1 + distance) - 5 * 0.5 / rows**0.5


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("min_p", [None, 0.01])
def test_looking_at_the_likeliest_tokens_first_changes_nothing(spread: float, min_p: float | None) -> None:
    """Compares with draws from the whole sorted vocabulary; flat distributions need more tokens than tried first."""
    torch.manual_seed(0)
    rows, size = 64, 5000
    logits, temperature = torch.randn(rows, size) * spread, torch.ones(rows)
    keys = torch.from_numpy(row_keys(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.uint64)))
    top_k, top_p = torch.randint(1, 60, (rows,)), torch.rand(rows)
    floors = None if min_p is None else torch.full((rows,), min_p)

    def along_all(top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> list[int]:
        probabilities = (logits.double()).softmax(-1)
        if floors is not None:
            probabilities[probabilities < probabilities.amax(-1, keepdim=True) * floors[:, None]] = 0
        ordered, token_ids = probabilities.sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(size)[None, :]
        if top_k is not None:
            ordered[ranks >= top_k[:, None]] = 0
        if top_p is not None:
            shares = ordered / ordered.sum(-1, keepdim=True)
            ordered[(shares.cumsum(-1) - shares >= top_p[:, None]) & (ranks > 0)] = 0
        places = (ordered / exponentials(keys, token_ids)).argmax(-1, keepdim=True)
        return token_ids.gather(-1, places)[:, 0].tolist()

    for k, p, candidates in ((top_k, top_p, 64), (top_k, None, 64), (top_k, top_p, None), (None, top_p, None)):
        drawn = draw(logits, temperature, k, p, floors, keys, candidates).tolist()
        if spread:  # otherwise all tokens are equally likely, and any order is right
            same = sum(one == other for one, other in zip(drawn, along_all(k, p), strict=True))
            assert same >= rows - 1  # except rounding at a boundary
        else:
            assert len(set(drawn)) > 1


@pytest.mark.parametrize("fields", [{"repetition_penalty": 2.0}, {"bad_words": ((0, 0, 0),)}, {"bad_words": ((7, 0),)}])
def test_the_ids_of_embeddings_are_looked_back_at_by_nobody(fields: dict[str, Any]) -> None:
    """Token 0, the placeholder of embeddings, is the likeliest; in one case, an output token 7 follows the prompt."""
    for num_unknown in (0, 3):
        sampler = Sampler(1, VOCAB_SIZE, torch.device("cpu"))
        known = [0, 0, 0] if fields != {"bad_words": ((7, 0),)} else [0, 0, 0, 7]
        sampler.add(0, sampling_plan(temperature=0.0, **fields), known, 3, num_unknown)
        (token_id,) = sampler.sample(LOGITS[None].clone(), SampledRows([0], [len(known)])).token_ids.tolist()
        assert token_id == (0 if num_unknown and len(known) == 3 else 1)
