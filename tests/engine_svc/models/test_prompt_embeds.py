"""Prompts as embeddings give what Transformers generates from them, and what their token ids, if any, would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens

pytestmark = pytest.mark.slow

PROMPTS = random_prompts(1, 5, 16, 33, 70)
SHORT = replace(GREEDY, max_tokens=24)


def reference(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def as_embeds(values: torch.Tensor) -> PromptEmbeds:
    """Converts [tokens, hidden_size] to the form used in requests."""
    name = str(values.dtype).removeprefix("torch.")
    return PromptEmbeds(name, values.shape[1], values.contiguous().view(torch.uint8).numpy().tobytes())


def looked_up(folder: Path, prompts: list[list[int]]) -> list[PromptEmbeds]:
    """Returns the embeddings of the prompts' tokens."""
    embeddings = reference(folder).get_input_embeddings()
    with torch.inference_mode():
        return [as_embeds(embeddings(torch.tensor(prompt))) for prompt in prompts]


def request(embeds: PromptEmbeds, sampling: SamplingParameters = SHORT, **fields: Any) -> GenerationRequest:
    return GenerationRequest("r", [], sampling, prompt_embeds=embeds, **fields)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "granite", "deepseek-v3", "opt-projected", "biogpt"])
def test_the_embeddings_of_tokens_are_those_tokens(model_folder: ModelFolder, family: str) -> None:
    """Covers both kinds of prompts in one batch, in chunks, and found again in the prefix cache."""
    folder = model_folder(family)
    embeds = looked_up(folder, PROMPTS)
    with running_engine(folder, max_num_batched_tokens=17) as engine:
        expected = tokens(run(engine, PROMPTS, SHORT))
        mixed = [each for ids, rows in zip(PROMPTS, embeds, strict=True)
                 for each in (GenerationRequest("r", ids, SHORT), request(rows))]  # fmt: skip
        found = run_requests(engine, mixed)
        assert tokens(found) == [each for each in expected for _ in range(2)]
        again = run_requests(engine, [request(rows) for rows in embeds])
    assert tokens(again) == expected
    usages = [choices[0].usage for choices in again]
    assert all(usage is not None for usage in usages)
    assert [usage.prompt_tokens for usage in usages if usage] == [1, 5, 16, 33, 70]
    assert [usage.cached_prompt_tokens for usage in usages if usage] == [0, 0, 0, 32, 64]


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite"])
def test_as_transformers(model_folder: ModelFolder, family: str) -> None:
    """Covers embeddings that belong to no token."""
    folder = model_folder(family)
    model = reference(folder)
    size = model.get_input_embeddings().weight
    values = [torch.randn(length, size.shape[1]) * size.std() for length in (3, 16, 40)]
    expected = [
        model.generate(
            inputs_embeds=each[None], attention_mask=torch.ones(1, len(each)), max_new_tokens=24, do_sample=False
        )[0].tolist()
        for each in values
    ]
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [request(as_embeds(each)) for each in values])) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types_are_converted(model_folder: ModelFolder, dtype: torch.dtype) -> None:
    folder = model_folder("llama")
    rows = reference(folder).get_input_embeddings()(torch.tensor(PROMPTS[3])).detach().to(dtype)
    with running_engine(folder) as engine:
        exact, given = run_requests(engine, [request(as_embeds(rows.float())), request(as_embeds(rows))])
    assert given[0].token_ids == exact[0].token_ids


def test_several_sequences_share_the_prompt(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    sampling = replace(SHORT, n=3, temperature=1.0, seed=7, top_k=20)
    with running_engine(folder, max_num_batched_tokens=20) as engine:
        expected = run(engine, PROMPTS, sampling)
        found = run_requests(engine, [request(rows, sampling) for rows in looked_up(folder, PROMPTS)])
    assert [[each.token_ids for each in choices] for choices in found] == [
        [each.token_ids for each in choices] for choices in expected
    ]


def test_preempted_ones_are_computed_again(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    sampling, prompts = replace(GREEDY, max_tokens=60), random_prompts(40, 41, 42, 43)
    embeds = looked_up(folder, prompts)
    for caching in (True, False):
        with running_engine(folder, num_blocks=16, enable_prefix_caching=caching) as engine:
            expected = tokens(run(engine, prompts, sampling))
            before = engine.load().counters.preemptions
            assert tokens(run_requests(engine, [request(rows, sampling) for rows in embeds])) == expected
            assert engine.load().counters.preemptions > before


def test_one_that_moved_goes_on(model_folder: ModelFolder) -> None:
    """The request's embeddings move with it, to a cache that has none of its blocks."""
    folder = model_folder("llama")
    (rows,) = looked_up(folder, PROMPTS[3:4])
    sampling = replace(SHORT, n=2, temperature=1.0, seed=5, top_k=20)
    with running_engine(folder) as engine:
        (whole,) = run_requests(engine, [request(rows, sampling)])
    progress = (ChoiceProgress(whole[0].token_ids[:9]), ChoiceProgress(whole[1].token_ids[:17]))
    with running_engine(folder) as engine:
        (rest,) = run_requests(engine, [request(rows, sampling, progress=progress)])
    assert [each.token_ids for each in rest] == [whole[0].token_ids[9:], whole[1].token_ids[17:]]


def test_what_is_cached_of_others_is_not_found(model_folder: ModelFolder) -> None:
    """Prompts of one length differ only in their embeddings, since all have the placeholder token id 0."""
    folder = model_folder("llama")
    prompts = [[0] * 40, *random_prompts(40, 40, seed=1)]
    with running_engine(folder) as engine:
        expected = tokens(run(engine, prompts, SHORT))
    with running_engine(folder) as engine:
        assert tokens(run(engine, prompts[:1], SHORT)) == expected[:1]
        for rows, wanted in zip(looked_up(folder, prompts)[::-1], expected[::-1], strict=True):
            ((found,),) = run_requests(engine, [request(rows)])
            assert found.token_ids == wanted
            assert found.usage is not None
            assert found.usage.cached_prompt_tokens == 0
        ((other,),) = run_requests(engine, [request(looked_up(folder, prompts)[1], cache_salt="another's")])
        assert other.usage is not None
        assert other.usage.cached_prompt_tokens == 0


def test_ranks_agree(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    embeds = looked_up(folder, PROMPTS)
    with running_engine(folder) as engine:
        expected = tokens(run(engine, PROMPTS, SHORT))
    with running_engine(folder, tensor_parallel_size=2, max_num_batched_tokens=30) as engine:
        assert tokens(run_requests(engine, [request(rows) for rows in embeds])) == expected
