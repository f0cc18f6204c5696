"""Sampling with a watermark, against tokens computed one by one as the scheme is published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from engine_svc.plan import SamplingPlan
from engine_svc.requests.request import RequestLimits
from engine_svc.requests.sampling_validation import check_sampling
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.verification import read_runs, sample_runs
from engine_svc.sampling.watermark import Watermark
from quire.errors import InvalidRequest, StartupError
from quire.options.watermark import WatermarkConfig
from quire.sampling import SamplingParameters
from quire.watermark import NO_TOKEN, detect, noise_words, uniform
from tests.support.plans import sampling_plan
from tests.support.rank_drafter import RankDrafter
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import make_model

SIZE, CPU = 11, torch.device("cpu")
CONFIG = WatermarkConfig(42, context_width=2)
PROMPTS = random_prompts(5, 30)
SAMPLED = SamplingParameters(temperature=1.0, max_tokens=40, seed=1, ignore_eos=True)


def sampler_of(config: WatermarkConfig | None, plans: list[SamplingPlan], known: list[int], num_prompt: int) -> Sampler:
    watermark = None if config is None else Watermark(config, len(plans), 64, CPU)
    sampler = Sampler(len(plans), SIZE, CPU, watermark=watermark)
    for slot, plan in enumerate(plans):
        sampler.add(slot, plan, known, num_prompt)
    return sampler


def answer(config: WatermarkConfig | None, plan: SamplingPlan, logits: torch.Tensor, known: list[int]) -> list[int]:
    """Samples a token for each row; the prompt has two."""
    sampler, found = sampler_of(config, [plan], known, 2), list(known)
    for row in logits:
        output = sampler.sample(row[None].clone(), SampledRows([0], [len(found)]))
        found.append(int(output.token_ids[0]))
    return found[2:]


def logits_of(count: int) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(3))


def published(logits: torch.Tensor, context: tuple[int, ...], temperature: float, top_k: int) -> int:
    kept = logits.topk(top_k).indices.tolist()

    def value(token: int) -> float:
        noise = uniform(noise_words(42, context, token >> 2)[token & 3] >> 8)
        return float(logits[token]) / temperature - math.log(-math.log(noise))

    return max(kept, key=value)


@pytest.mark.parametrize("scope", ["none", "single_turn", "all"])
def test_tokens_are_those_of_the_scheme(scope: Any) -> None:
    """Where a context repeats, they are those without a mark."""
    logits, prompt = logits_of(40), [1, 2]
    plan = sampling_plan(temperature=0.8, top_k=4, seed=7)
    found = answer(replace(CONFIG, deduplicate_contexts=scope), plan, logits, prompt)
    plain, known, marked = sampler_of(None, [plan], prompt, 2), list(prompt), 0
    seen = {(1, 2)} if scope == "all" else set[tuple[int, ...]]()
    for step, token in enumerate(found):
        context = tuple(([NO_TOKEN] * 2 + known[2:])[-2:])
        repeats = context in seen if scope != "all" else step < 2 or tuple(known[-2:]) in windows(known)
        if scope != "none" and repeats:
            (expected,) = plain.sample(logits[step][None].clone(), SampledRows([0], [len(known)])).token_ids.tolist()
        else:
            expected, marked = published(logits[step], context, 0.8, 4), marked + 1
        assert token == expected
        seen.add(context)
        known.append(token)
    assert 10 < marked < 40 or scope == "none"


def windows(known: list[int]) -> set[tuple[int, ...]]:
    """The contexts of all earlier positions, with as many tokens as there are."""
    return {tuple(([NO_TOKEN] * 2 + known[:end])[-2:]) for end in range(len(known))}


def test_a_short_memory_forgets_contexts() -> None:
    logits = logits_of(1).expand(30, -1)  # so that a context returns soon
    plan = sampling_plan(temperature=0.5, top_k=2, seed=7)
    answers = [
        answer(replace(CONFIG, deduplicate_contexts_max_history=most), plan, logits, [1, 2]) for most in (1, 8, None)
    ]
    assert len({tuple(each) for each in answers}) == 3


@pytest.mark.parametrize("algorithm", ["gumbel", "dual_key_gumbel"])
def test_a_sequence_that_comes_back_goes_on(algorithm: str) -> None:
    """Its known tokens are all that a worker needs, and drafts change nothing."""
    config, logits = replace(CONFIG, algorithm=algorithm, alpha=0.5), logits_of(20)
    plan = sampling_plan(temperature=1.0, seed=7)
    whole = answer(config, plan, logits, [1, 2])
    assert answer(config, plan, logits[8:], [1, 2, *whole[:8]]) == whole
    drafts = [*whole[:5], (whole[5] + 1) % SIZE, *whole[6:8], -1]
    rows = SampledRows([0] * 9, list(range(2, 11)), drafts, list(range(9)))
    outputs, failed = sample_runs(sampler_of(config, [plan], [1, 2], 2), logits[:9].clone(), rows)
    assert not failed
    assert read_runs(outputs).token_ids[0] == whole[:6]


def test_rows_are_as_they_are_alone() -> None:
    """Marked or greedy, opted out, or with nothing to sample."""
    plans = [
        sampling_plan(temperature=1.0, seed=7), sampling_plan(temperature=0.0),
        sampling_plan(temperature=1.0, seed=7, watermarking=False), sampling_plan(temperature=1.0, seed=8),
    ]  # fmt: skip
    logits = logits_of(1).expand(4, -1).clone()
    logits[3] = torch.nan
    together = sampler_of(CONFIG, plans, [1, 2], 2).sample(logits.clone(), SampledRows(range(4), [2] * 4))
    marked, greedy, out, broken = together.token_ids.tolist()
    assert marked == published(logits[0], (NO_TOKEN, NO_TOKEN), 1.0, SIZE)
    assert greedy == int(logits[1].argmax())
    assert [out] == answer(None, plans[2], logits[2:3], [1, 2])
    assert (broken, together.broken.broken.tolist()) == (0, [False, False, False, True])


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and not found._is_view():
            self.numbers = max(self.numbers, found.numel())
        return found


def test_memory_does_not_grow_with_rows_or_contexts() -> None:
    known, plan = [*range(1, 9)] * 8, sampling_plan(temperature=1.0, seed=7)
    config = replace(CONFIG, context_width=8, deduplicate_contexts="all")
    watermark, logits = Watermark(config, 40, 65, CPU), torch.zeros(40, SIZE)
    for slot in range(40):
        watermark.add(slot, plan, known, 2)
    chosen, broken = torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.bool)
    with Largest() as largest:
        watermark.choose(logits, chosen, broken, SampledRows(range(40), [64] * 40), [plan.parameters] * 40)
    assert largest.numbers == 16 * 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama", initializer_range=0.02)


def test_an_engine_marks_what_it_samples(folder: Path) -> None:
    """With speculation, preemption and several choices, which differ with two keys."""
    settings = {"key": 99}
    with running_engine(folder, watermark_config=settings) as engine:
        expected = tokens(run(engine, PROMPTS, SAMPLED))
        assert tokens(run(engine, PROMPTS, replace(SAMPLED, seed=2))) == expected
        out = tokens(run(engine, PROMPTS, replace(SAMPLED, watermarking=False)))
    config = WatermarkConfig(**settings)
    assert all(detect(each, config, 0.01).p_value < 1e-6 for each in expected)
    assert not any(detect(each, config, 1e-4).is_watermarked for each in out)
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    with running_engine(
        folder, watermark_config=settings, speculative_config=drafts, num_blocks=8, enable_prefix_caching=False
    ) as engine:
        assert tokens(run(engine, PROMPTS, replace(SAMPLED, watermarking=True))) == expected
    with running_engine(folder, watermark_config={**settings, "algorithm": "dual_key_gumbel", "alpha": 0.5}) as engine:
        (choices,) = run(engine, PROMPTS[:1], replace(SAMPLED, n=2))
        assert choices[0].token_ids != choices[1].token_ids
    with running_engine(folder) as engine:
        assert tokens(run(engine, PROMPTS, SAMPLED)) == out


@pytest.mark.parametrize("scope", ["none", "single_turn"])
def test_draft_models_guess_marked_tokens(folder: Path, scope: str) -> None:
    """Drafts of the model itself are all right."""
    marks = {"key": 99, "deduplicate_contexts": scope, "deduplicate_contexts_max_history": 4, "context_width": 1}
    with running_engine(folder, watermark_config=marks) as engine:
        expected = tokens(run(engine, PROMPTS, SAMPLED))
    options: dict[str, Any] = {"speculative_config": {"model": str(folder), "num_speculative_tokens": 3}}
    with running_engine(folder, watermark_config=marks, drafter=RankDrafter(3), **options) as engine:
        assert tokens(run(engine, PROMPTS, SAMPLED)) == expected
        assert engine.load().step <= 12  # of 40 tokens, four at a time


def test_who_insists_on_a_mark_is_told_that_there_is_none() -> None:
    insisting = replace(SAMPLED, watermarking=True)
    limits = RequestLimits(("tiny",), SIZE, 64, 20, "fcfs", has_watermark=True)
    check_sampling(insisting, limits)
    check_sampling(replace(insisting, watermarking=None, temperature=0.0), limits)
    with pytest.raises(InvalidRequest, match="watermarking is true, but greedy outputs cannot be marked"):
        check_sampling(replace(insisting, temperature=0.0), limits)
    with pytest.raises(InvalidRequest, match=r"needs --watermark-config\. Or leave it out"):
        check_sampling(insisting, RequestLimits(("tiny",), SIZE, 64, 20, "fcfs"))


def test_speculation_that_replaces_tokens_is_refused(folder: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_method": "typical_acceptance_sampler"}
    with (
        pytest.raises(StartupError, match="accepts drafted tokens without a mark"),
        running_engine(folder, watermark_config={"key": 1}, speculative_config=drafts),
    ):
        pass
