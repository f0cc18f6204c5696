"""Tokens and log-probabilities are bitwise equal, whatever shares the batch and however the work is split.

Tested for each family of kernels, at each instruction level that this processor has.
"""

from __future__ import annotations

import dataclasses
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.native.levels import LEVELS
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.errors import StartupError
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.native import AVAILABLE, needs_native
from tests.support.run_engine import Output, random_prompts, run_requests, running_engine

TYPES: list[dict[str, Any]] = [
    {"dtype": "bfloat16"}, {"dtype": "bfloat16", "quantization": "int8"}, {"dtype": "float16"}, {"dtype": "float32"},
]  # fmt: skip
# Windows and soft caps, experts, latent attention, sinks, each kind of state, and learned activations.
FAMILIES = (
    "llama", "gemma2", "gemma4-moe", "gemma4-small", "mixtral", "deepseek-v3", "gpt-oss", "jamba", "bamba",
    "qwen3-next", "apertus",
)  # fmt: skip
TOKENS = 12
HIDDEN_SIZE = 64
# Everything returned for a sequence, alone and in a batch, which is compared bit for bit.
Content = tuple[Any, ...]


def requests(count: int) -> list[GenerationRequest]:
    """Returns greedy and seeded requests with log-probabilities."""
    source = Random(5)
    samplings = (
        SamplingParameters(temperature=0.0), SamplingParameters(seed=3), SamplingParameters(seed=4, top_k=7),
        SamplingParameters(seed=5, top_p=0.8, frequency_penalty=0.5), SamplingParameters(seed=6, min_p=0.3, n=2),
        SamplingParameters(temperature=0.0, prompt_logprobs=1),
    )  # fmt: skip
    return [
        GenerationRequest(
            f"r{index}",
            **prompt(source.choice((1, 2, 5, 16, 17, 33, 70)), index, embedded=index % 7 == 4),
            sampling=replace(samplings[index % len(samplings)], max_tokens=TOKENS, ignore_eos=True, logprobs=2),
        )
        for index in range(count)
    ]


def prompt(length: int, seed: int, embedded: bool) -> dict[str, Any]:
    if not embedded:
        return {"prompt_token_ids": random_prompts(length, seed=seed)[0]}
    values = torch.randn(length, HIDDEN_SIZE, generator=torch.Generator().manual_seed(seed)) / 50
    return {"prompt_token_ids": [], "prompt_embeds": PromptEmbeds("float32", HIDDEN_SIZE, values.numpy().tobytes())}


def contents(outputs: list[list[Output]]) -> list[list[Content]]:
    return [[(each.token_ids, each.logprobs, each.prompt_logprobs) for each in choices] for choices in outputs]


def alone(engine: Engine, asked: list[GenerationRequest]) -> list[list[Content]]:
    """Runs the requests one after the other."""
    return [contents(run_requests(engine, [request]))[0] for request in asked]


def rest(whole: list[Content], cut: int) -> list[Content]:
    return [(token_ids[cut:], logprobs[cut:], []) for token_ids, logprobs, _ in whole]


def going_on(request: GenerationRequest, whole: list[Content], cut: int) -> GenerationRequest:
    """Returns the request as another worker gets it when the first is lost after `cut` tokens."""
    progress = tuple(ChoiceProgress(token_ids[:cut]) for token_ids, *_ in whole)
    return dataclasses.replace(request, progress=progress)


def check(folder: Path, **options: Any) -> None:
    asked = requests(64)
    some = asked[:8]
    wide = {"num_blocks": 600, "max_num_seqs": 80, "enable_prefix_caching": False, "cpu_threads": 1} | options
    with running_engine(folder, batch_invariant=True, **wide) as engine:
        expected = alone(engine, some)
        assert len({tuple(content[0]) for content in chain(*expected)}) > 6
        beside = contents(run_requests(engine, asked))
        assert beside[: len(some)] == expected
    # Different chunks and threads, cached blocks, and too few blocks for all.
    narrow = {
        "num_blocks": 18,
        "block_size": 16,
        "max_model_len": 96,
        "max_num_batched_tokens": 23,
        "mamba_block_size": 16,
        "cpu_threads": 2,
    } | options
    with running_engine(folder, batch_invariant=True, **narrow) as engine:
        assert contents(run_requests(engine, asked[:24])) == beside[:24]
        assert engine.load().counters.preemptions > 0
        before = engine.load().counters.prefix_cache_hits
        for request, content in zip(some[:4], expected, strict=False):
            assert alone(engine, [request, request]) == [content, content]
        assert engine.load().counters.prefix_cache_hits > before
        moved = [
            going_on(request, whole, 3 + index)
            for index, (request, whole) in enumerate(zip(some, expected, strict=True))
        ]
        found = contents(run_requests(engine, moved))
        assert found == [rest(whole, 3 + index) for index, whole in enumerate(expected)]


def cases() -> list[Any]:
    """Pairs the first family with each level, and each other family with one; levels have several types each."""
    found = []
    for at, level in enumerate(LEVELS):
        marks = [] if level in AVAILABLE else [pytest.mark.skip(f"this processor lacks {level}")]
        found.append((level, FAMILIES[0], TYPES[(at - 1) % len(TYPES)], marks))
    for index, family in enumerate(FAMILIES[1:] if AVAILABLE else ()):
        turn, at = divmod(index, len(AVAILABLE))
        found.append((AVAILABLE[at], family, TYPES[(turn + index) % len(TYPES)], [pytest.mark.slow]))
    return [
        pytest.param(level, family, form, marks=marks, id=f"{level}-{family}-{'-'.join(form.values())}")
        for level, family, form, marks in found
    ]


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="there are no kernels")
def test_with_a_cache_of_8_bits_too(model_folder: ModelFolder) -> None:
    check(model_folder("llama"), kv_cache_dtype="fp8", dtype="bfloat16", cpu_kernels=AVAILABLE[-1])


@pytest.mark.parametrize(("level", "family", "form"), cases())
def test_a_request_depends_on_itself_alone(
    model_folder: ModelFolder, level: str, family: str, form: dict[str, Any]
) -> None:
    # Logits so close to each other that their last bits decide, and a vocabulary size that is no multiple of a vector.
    latent = {"kv_lora_rank": 24} if family == "deepseek-v3" else {}  # a multiple of 16 together with the rotated part
    folder = model_folder(family, initializer_range=0.02, vocab_size=163, **latent)
    check(folder, cpu_kernels=level, **form)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("options", [{"num_host_blocks": 40}, {"tensor_parallel_size": 2, "cpu_threads": 1}])
def test_by_way_of_host_memory_and_on_several_ranks(model_folder: ModelFolder, options: dict[str, Any]) -> None:
    check(model_folder("llama", initializer_range=0.02, vocab_size=163), dtype="bfloat16", **options)


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llama", {"cpu_kernels": "torch"}, "--cpu-kernels at auto"),
        pytest.param("llama", {"attention_backend": "cpu"}, "which cpu does not", marks=needs_native),
        ("biogpt", {}, "--batch-invariant"),
        ("llama", {"model_impl": "transformers"}, "--batch-invariant"),
    ],
)
def test_what_cannot_keep_to_it_is_refused(
    model_folder: ModelFolder, family: str, options: dict[str, Any], words: str
) -> None:
    with (
        pytest.raises(StartupError, match=words),
        running_engine(model_folder(family), batch_invariant=True, **options),
    ):
        pass


@pytest.mark.parametrize("asked", [None, False])
def test_nobody_is_refused_who_has_not_asked(model_folder: ModelFolder, asked: bool | None) -> None:
    with running_engine(model_folder("llama"), batch_invariant=asked, cpu_kernels="torch") as engine:
        assert len(run_requests(engine, requests(1))[0][0].token_ids) == TOKENS
