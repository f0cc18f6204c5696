"""Drafted tokens, right or wrong, change nothing except how many tokens a step yields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace as changed
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from engine_svc.requests.validation import validate
from quire.errors import InvalidRequest
from quire.reasoning import ReasoningMarks
from quire.sampling import LogitsProcessorCall, SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_batch_invariance import requests
from tests.engine_svc.runner.test_row_faults import LIMITS
from tests.engine_svc.runner.test_row_faults import SAMPLINGS as ANY
from tests.support import logits_processors
from tests.support.grammars import EOS, PERSON, VOCABULARY_SIZE, following, make_grammars, matching, spell
from tests.support.native import needs_native
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import Output, random_prompts, run_requests, running_engine
from tests.support.tiny_models import VOCAB_SIZE

GREEDY = SamplingParameters(temperature=0.0, max_tokens=24)
SEEDED = replace(GREEDY, temperature=1.2, seed=5)
# Token ids are arbitrary, which does for most cases; ids likely in the plain greedy output would make some trivial.
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


def told(outputs: list[list[Output]]) -> list[Any]:
    """Returns all outputs without usage, which depends on the cache and on which sequence ends last."""
    return [changed(output, usage=None) for choices in outputs for output in choices]


def check(
    folder: Path, asked: list[GenerationRequest] = REQUESTS, rights: tuple[float, ...] = (0.8,), **options: Any
) -> list[Any]:
    """Checks that drafts of which the given shares are right change no output; returns the outputs without usage."""
    drafter = ReplayingDrafter(VOCAB_SIZE)
    with running_engine(folder, drafter=drafter, **options) as engine:
        outputs = run_requests(engine, asked)
        before = engine.load().step
        assert not drafter.num_drafts
        drafter.know(asked, [[choice.token_ids for choice in choices] for choices in outputs])
        for right in rights:
            drafter.right = right
            assert told(run_requests(engine, asked)) == told(outputs), right
            assert drafter.num_drafts > drafter.num_right > 2 * len(asked)
        assert engine.load().step < before * (1 + len(rights))
        assert engine.load().counters.preemptions or options.get("num_blocks", 256) > 20
    return told(outputs)


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 23, "num_blocks": 14, "max_num_seqs": 12}])
def test_all_that_a_request_may_ask_for(model_folder: ModelFolder, options: dict[str, Any]) -> None:
    """All requests are in one batch, with prompt chunks beside verified drafts, and too few blocks for all."""
    folder = model_folder("llama-untied")
    with running_engine(folder, **options) as plain:
        expected = told(run_requests(plain, REQUESTS))
    assert check(folder, rights=(0.9, 0.5), **options) == expected


# Together with the rotated part a multiple of 16, so that attention is batch-invariant.
LATENT = {"deepseek-v3": {"kv_lora_rank": 24}, "kimi-linear": {"kv_lora_rank": 24}}
# Windows whose blocks are released, experts, latent attention, sinks; each in one data type.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {"dtype": "bfloat16"}),
    "eight bits": ("llama", {"dtype": "bfloat16", "quantization": "int8"}),
    "eight bits of cache": ("llama", {"dtype": "bfloat16", "kv_cache_dtype": "fp8", "calculate_kv_scales": True}),
    "windows": ("gemma3", {"dtype": "bfloat16"}),
    "windows and soft caps": ("gemma2", {"dtype": "bfloat16", "quantization": "int8"}),
    "a window for all": ("mistral", {"dtype": "float16"}),
    "experts": ("mixtral", {}),
    "compressed": ("deepseek-v3", {"dtype": "bfloat16"}),
    "sinks": ("gpt-oss", {"dtype": "float16"}),
    "host memory": ("llama", {"dtype": "bfloat16", "num_host_blocks": 40}),
    "ranks": ("llama", {"dtype": "bfloat16", "tensor_parallel_size": 2, "cpu_threads": 1}),
}


@needs_native
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "plain" else [pytest.mark.slow]) for name in FORMS]
)
def test_tokens_do_not_depend_on_drafts_bit_for_bit(model_folder: ModelFolder, name: str) -> None:
    """The logits are so close to each other that their last bits decide."""
    family, form = FORMS[name]
    folder = model_folder(family, initializer_range=0.02, vocab_size=163, **LATENT.get(family, {}))
    narrow = {"num_blocks": 60, "max_num_batched_tokens": 37, "max_model_len": 96, "batch_invariant": True} | form
    asked = [*requests(12), *short(REQUESTS)]
    check(folder, asked[:8] if name == "ranks" else asked, **narrow)  # fewer for `ranks`, whose steps are slow


def short(asked: list[GenerationRequest]) -> list[GenerationRequest]:
    return [each for each in asked if each.num_prompt_tokens < 40]


# Each kind of state, in one data type.
STATES = {
    "delta": ("qwen3-next", {"dtype": "bfloat16"}),
    "delta by key": ("kimi-linear", {}),
    "heads": ("bamba", {"dtype": "float16"}),
    "channels": ("jamba", {"dtype": "bfloat16"}),
    "convolution": ("lfm2-bias", {}),
    "units": ("recurrent-gemma", {"dtype": "bfloat16"}),
    "ranks": ("qwen3-next", {"tensor_parallel_size": 2, "cpu_threads": 1}),
}


@needs_native
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "delta" else [pytest.mark.slow]) for name in STATES]
)
def test_states_go_back_to_the_last_right_token(model_folder: ModelFolder, name: str) -> None:
    """States are saved between drafts as well, also those of sequences that are preempted."""
    family, form = STATES[name]
    config = {"method": "ngram", "num_speculative_tokens": 5}
    narrow = {"num_blocks": 40, "max_num_batched_tokens": 37, "max_model_len": 96, "mamba_block_size": 16}
    asked = short(REQUESTS)
    folder = model_folder(family, **LATENT.get(family, {}))
    check(folder, asked[:8] if name == "ranks" else asked, speculative_config=config, **(narrow | form))


@pytest.mark.slow
def test_models_that_run_by_the_code_of_transformers(model_folder: ModelFolder) -> None:
    check(model_folder("biogpt"), [each for each in REQUESTS if each.sampling.temperature == 0.0])


def test_a_request_that_moves_goes_on_with_drafts(model_folder: ModelFolder) -> None:
    """A request continues wherever another worker left off; tokens that it already has are not drafted again."""
    names = ("greedy", "seeded", "penalties", "choices", "thinking-budget", "processors", "logprobs")
    asked = [request for request in REQUESTS if request.request_id in names]
    drafter = ReplayingDrafter(VOCAB_SIZE)
    with running_engine(model_folder("llama-untied"), drafter=drafter) as engine:
        whole = run_requests(engine, asked)
        drafter.know(asked, [[choice.token_ids for choice in choices] for choices in whole])
        for cut in (1, 7, 23):
            moved = [
                changed(request, progress=tuple(ChoiceProgress(choice.token_ids[:cut]) for choice in choices))
                for request, choices in zip(asked, whole, strict=True)
            ]
            for choices, rest in zip(whole, run_requests(engine, moved), strict=True):
                assert [each.token_ids[cut:] for each in choices] == [each.token_ids for each in rest]
                assert [each.logprobs[cut:] for each in choices] == [each.logprobs for each in rest]
    assert drafter.num_right > 50


def test_typical_acceptance_takes_drafts_that_others_would_not_have_sampled(model_folder: ModelFolder) -> None:
    """With a model that finds all tokens about equally likely, most drafts are accepted, except in greedy sequences."""
    config = {"method": "ngram", "acceptance_method": "typical_acceptance_sampler"}
    asked = [
        GenerationRequest(name, random_prompts(9)[0], replace(sampling, max_tokens=40, logprobs=0))
        for name, sampling in {"greedy": GREEDY, "seeded": SEEDED, "penalised": SAMPLINGS["seeded-penalties"]}.items()
    ]
    drafter = ReplayingDrafter(VOCAB_SIZE, right=1.0)
    folder = model_folder("llama", initializer_range=0.02)
    with running_engine(folder, drafter=drafter, speculative_config=config) as engine:
        plain = run_requests(engine, asked)
        other = [[[*range(each, 40 + each)]] for each in range(3)]
        drafter.know(asked, other)
        found = run_requests(engine, asked)
    assert told(found)[0] == told(plain)[0]
    for index in (1, 2):
        (output,) = found[index]
        assert [position.token_ids[0] for position in output.logprobs] == output.token_ids
        taken = sum(one == guess for one, guess in zip(output.token_ids, other[index][0], strict=True))
        assert 20 < taken < 40


def test_outputs_that_follow_grammars(model_folder: ModelFolder) -> None:
    """Rows are sampled all at once or one by one, each under the mask of its position."""
    more: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 1.0, "logprobs": 1},
        {"temperature": 0.0},
        {"min_tokens": 9},
    ]
    asked = [
        GenerationRequest(f"{one}-{other}", spell("Give me one."), replace(SEEDED, **fields), constraint=constraint)
        for one, constraint in enumerate((following(PERSON), matching("[a-f]{2,30}(yes|no)"), None))
        for other, fields in enumerate(more)
    ]
    grammars = make_grammars()
    try:
        check(model_folder("llama-untied", vocab_size=VOCABULARY_SIZE), asked, grammars=grammars, eos_token_ids=(EOS,))
    finally:
        grammars.close()


@pytest.fixture(scope="module")
def drafting(model_folder: ModelFolder) -> Iterator[tuple[Engine, ReplayingDrafter]]:
    drafter = ReplayingDrafter(VOCAB_SIZE)
    with running_engine(model_folder("llama-untied"), drafter=drafter, eos_token_ids=(3,)) as engine:
        yield engine, drafter


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    samplings=st.lists(ANY.filter(lambda sampling: sampling.seed is not None), min_size=1, max_size=4),
    length=st.sampled_from([1, 2, 33]),
    right=st.sampled_from([1.0, 0.8, 0.3]),
)
def test_any_parameters_have_the_tokens_that_they_have_without_drafts(
    drafting: tuple[Engine, ReplayingDrafter], samplings: list[SamplingParameters], length: int, right: float
) -> None:
    engine, drafter = drafting
    asked = []
    for index, sampling in enumerate(samplings):
        request = GenerationRequest(f"r{index}", random_prompts(length)[0], sampling)
        with contextlib.suppress(InvalidRequest):
            validate(request, LIMITS)
            asked.append(request)
    drafter.know([], [])
    outputs = run_requests(engine, asked)
    drafter.right = right
    drafter.know(asked, [[choice.token_ids for choice in choices] for choices in outputs])
    assert told(run_requests(engine, asked)) == told(outputs)
