"""Drafted tokens, right and wrong, change nothing but how many tokens a step brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.requests.request import GenerationRequest
from quire.reasoning import ReasoningMarks
from quire.sampling import LogitsProcessorCall, SamplingParameters
from tests.support import logits_processors
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import Output, random_prompts, run_requests, running_engine
from tests.support.tiny_models import VOCAB_SIZE, make_model

GREEDY = SamplingParameters(temperature=0.0, max_tokens=24)
SEEDED = replace(GREEDY, temperature=1.2, seed=5)
# Tokens that a plain greedy output is likely to have would make some of these dull; any will do for most.
SAMPLINGS: dict[str, SamplingParameters] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "truncated": replace(SEEDED, top_k=20, top_p=0.9, min_p=0.02),
    "top-k": replace(SEEDED, top_k=5),
    "penalties": replace(GREEDY, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3),
    "seeded-penalties": replace(SEEDED, frequency_penalty=2.0, repetition_penalty=0.8),
    "logprobs": replace(SEEDED, logprobs=3, prompt_logprobs=1),
    "processed-logprobs": replace(SEEDED, logprobs=2, top_k=9, presence_penalty=1.0, processed_logprobs=True),
    "logprobs-by-name": replace(SEEDED, logprobs=0, logprob_token_ids=(5, 9)),
    "choices": replace(SEEDED, n=3, logprobs=0),
    "stop": replace(SEEDED, stop_token_ids=tuple(range(0, VOCAB_SIZE, 9))),
    "min-tokens": replace(SEEDED, stop_token_ids=tuple(range(0, VOCAB_SIZE, 2)), min_tokens=11),
    "bad-words": replace(SEEDED, bad_words=(*pairwise(range(0, VOCAB_SIZE, 3)), (7,), (9, 9, 9)), top_k=6),
    "processors": replace(
        SEEDED, logits_processors=(LogitsProcessorCall(f"{logits_processors.__name__}.Successor", b"[1, 20]"),)
    ),
    "thinking-budget": replace(
        SEEDED, thinking_token_budget=9, reasoning=ReasoningMarks((), (5, 6, 5), is_open=True), top_k=9
    ),
    "allowed": replace(SEEDED, allowed_token_ids=(5, 9, 70)),
    "bias": replace(GREEDY, logit_bias=((3, -50.0), (9, 4.0))),
    "short": replace(GREEDY, max_tokens=2),
}  # fmt: skip
REQUESTS = [
    GenerationRequest(name, prompt, sampling)
    for (name, sampling), prompt in zip(
        SAMPLINGS.items(), random_prompts(*(1 + 3 * index for index in range(len(SAMPLINGS)))), strict=True
    )
]


@dataclass
class Engines:
    """The same model twice."""

    plain: Engine
    drafting: Engine
    drafter: ReplayingDrafter


@contextmanager
def engines(folder: Path, **options: Any) -> Iterator[Engines]:
    drafter = ReplayingDrafter(VOCAB_SIZE)
    with running_engine(folder, **options) as plain, running_engine(folder, drafter=drafter, **options) as drafting:
        yield Engines(plain, drafting, drafter)


def told(outputs: list[list[Output]]) -> list[Any]:
    """All that has come but the usage, which depends on the cache and on who is last."""
    return [changed(output, usage=None) for choices in outputs for output in choices]


def check_equal(engines: Engines, requests: list[GenerationRequest]) -> None:
    """Drafts of any quality; the drafting engine takes fewer steps."""
    expected = run_requests(engines.plain, requests)
    engines.drafter.know(requests, [[choice.token_ids for choice in choices] for choices in expected])
    for right in (1.0, 0.7, 0.0):
        engines.drafter.right = right
        assert told(run_requests(engines.drafting, requests)) == told(expected), right


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied")


def test_all_sampling_parameters_at_once(folder: Path) -> None:
    with engines(folder) as both:
        check_equal(both, REQUESTS)
