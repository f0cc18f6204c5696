"""Ranks that share the tokens of a cache answer as one rank does. They are threads, except in the last test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.adapters.adapter import read_adapter
from engine_svc.kv_cache.sizing import size_kv_cache
from engine_svc.requests.request import GenerationRequest
from engine_svc.speculative.registry import make_speculation
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_prompt_embeds import looked_up
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.heads import make_eagle3
from tests.support.multi_token import add_multi_token_layer
from tests.support.rank_drafter import NotedGuesses, RankDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import check_greedy, make_model

PROMPTS = random_prompts(1, 33, 70)
SHORT = replace(GREEDY, max_tokens=16)
ONE_HEAD = {"num_key_value_heads": 1}


def shared(size: int = 2, **options: Any) -> dict[str, Any]:
    """Options for `size` ranks, all of which share the tokens unless `options` say otherwise."""
    sizes = {"tensor_parallel_size": size, "decode_context_parallel_size": size}
    return {"executor": TensorExecutor(), "cpu_threads": 1} | sizes | options


@pytest.mark.parametrize(
    ("family", "changes", "options"),
    [
        ("llama", {}, {"size": 4, "decode_context_parallel_size": 2}),  # two groups, each with a key-value head
        ("llama", ONE_HEAD, {"size": 4, "attention_backend": "cpu"}),
        ("deepseek-v3", {}, {"max_num_batched_tokens": 19}),  # latent attention
        ("falcon-40b", {"alibi": True}, {"size": 4, "decode_context_parallel_size": 2, "max_num_batched_tokens": 19}),
        ("gemma2", ONE_HEAD, {"max_num_batched_tokens": 19}),  # soft caps, windows, two groups of layers
        ("gemma4-small", {}, {"max_num_batched_tokens": 19}),  # heads of two kinds, and borrowed keys and values
        pytest.param("deepseek-v3", {}, {"enable_expert_parallel": True}, marks=pytest.mark.slow),
        pytest.param("deepseek-v2", {}, {"attention_backend": "reference"}, marks=pytest.mark.slow),
        pytest.param("gpt-oss", ONE_HEAD, {"max_num_batched_tokens": 19}, marks=pytest.mark.slow),  # sinks and windows
        pytest.param("llama4", ONE_HEAD, {"block_size": 32}, marks=pytest.mark.slow),  # chunked attention
        pytest.param("qwen3-next", ONE_HEAD, {}, marks=pytest.mark.slow),  # with recurrent layers
    ],
)
def test_families(model_folder: ModelFolder, family: str, changes: dict[str, Any], options: dict[str, Any]) -> None:
    folder = model_folder(family, **changes)
    with running_engine(folder, **shared(**options)) as engine:
        found = run(engine, PROMPTS, replace(SHORT, logprobs=4))
    check_answers(folder, PROMPTS, found, 16)


@pytest.mark.parametrize(("family", "changes"), [("llama", ONE_HEAD), ("deepseek-v3", {})])
def test_prefix_hits_and_preemption(model_folder: ModelFolder, family: str, changes: dict[str, Any]) -> None:
    """Hits come in blocks of 32 tokens, 16 on each rank."""
    folder = model_folder(family, **changes)
    (first,) = random_prompts(70)
    prompts = [first + tail for tail in random_prompts(3, 20, 1, 9, seed=1)]
    with running_engine(folder, num_blocks=9, **shared()) as engine:
        run(engine, [first], SHORT)
        outputs = run(engine, prompts, replace(GREEDY, max_tokens=40))
        preempted, hits = engine.load().counters.preemptions, engine.load().counters.prefix_cache_hits
    check_greedy(folder, prompts, tokens(outputs), 40)
    assert preempted > 0
    assert hits % 32 == 0
    assert hits >= 64


def test_blocks_come_back_from_the_host(model_folder: ModelFolder) -> None:
    folder, prompts = model_folder("llama", **ONE_HEAD), random_prompts(70, 70, 70)
    with running_engine(folder, num_blocks=4, num_host_blocks=12, **shared()) as engine:
        for _ in range(2):
            outputs = [run(engine, [prompt], replace(GREEDY, max_tokens=4))[0] for prompt in prompts]
            check_greedy(folder, prompts, tokens(outputs), 4)
    assert [output.usage.cached_prompt_tokens for (output,) in outputs if output.usage] == [64] * 3


@pytest.mark.parametrize(
    "options", [{"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}]
)
def test_caches_of_8_bits(model_folder: ModelFolder, options: dict[str, Any]) -> None:
    folder = model_folder("qwen3", **ONE_HEAD)
    found = []
    for given in ({}, shared()):
        with running_engine(folder, **given, **options) as engine:
            found.append(tokens(run(engine, PROMPTS, SHORT)))
    assert found[0] == found[1]


def test_all_that_sampling_keeps(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", **ONE_HEAD)
    sampling = SamplingParameters(n=2, seed=3, max_tokens=30, top_k=20, logprobs=2, prompt_logprobs=1)
    found = []
    for given in ({}, shared()):
        with running_engine(folder, **given) as engine:
            found.append([choice for choices in run(engine, PROMPTS, sampling) for choice in choices])
    for one, other in zip(*found, strict=True):
        assert one.token_ids == other.token_ids
        for mine, yours in zip(one.logprobs + one.prompt_logprobs, other.logprobs + other.prompt_logprobs, strict=True):
            assert mine.token_ids == yours.token_ids
            assert mine.logprobs == pytest.approx(yours.logprobs, abs=1e-4)


def test_prompts_of_embeddings(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", **ONE_HEAD)
    requests = [GenerationRequest("r", [], SHORT, prompt_embeds=each) for each in looked_up(folder, PROMPTS[1:])]
    with running_engine(folder, **shared(max_num_batched_tokens=19)) as engine:
        found = tokens(run_requests(engine, requests))
    check_greedy(folder, PROMPTS[1:], found, 16)


def test_guessed_tokens(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", **ONE_HEAD)
    options = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    prompts = [prompt * 3 for prompt in random_prompts(6, 9, 14, 11)]
    config = engine_options(**options).speculative.chosen()
    assert config is not None
    drafter = make_speculation(config, iter(range(10**9)).__next__, overlaps=True)
    with running_engine(folder, drafter=drafter, **shared(**options)) as engine:
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=40)))
    check_greedy(folder, prompts, found, 40)


@pytest.mark.parametrize("ranks", [{}, {"draft_tensor_parallel_size": 1}], ids=str)
def test_a_draft_model_caches_all_tokens_on_each_of_its_ranks(model_folder: ModelFolder, ranks: dict[str, Any]) -> None:
    folder, drafter = model_folder("llama", **ONE_HEAD), RankDrafter(3)
    given = shared(speculative_config={"method": "draft_model", "model": str(folder)} | ranks)
    with running_engine(folder, drafter=drafter, **given) as engine:
        found = tokens(run(engine, PROMPTS[1:], SHORT))
    check_greedy(folder, PROMPTS[1:], found, 16)
    assert drafter.drafts["right"] == drafter.drafts["all"] > 20


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_heads_cache_all_tokens_on_each_rank(model_folder: ModelFolder, method: str, tmp_path: Path) -> None:
    """Heads draft the same as on one rank, for prompts computed in chunks and found in the prefix cache."""
    head = {} if method == "mtp" else {"model": str(tmp_path)}
    if method == "mtp":
        folder = make_model(tmp_path, "deepseek-v3")
        add_multi_token_layer(folder)
    else:
        folder = model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7, **ONE_HEAD)
        make_eagle3(tmp_path, folder)
    config, found = {"method": method, "num_speculative_tokens": 3} | head, []
    for given in ({"block_size": 32}, shared()):
        drafter = NotedGuesses()
        options = {"speculative_config": config, "max_num_batched_tokens": 40} | given
        with running_engine(folder, drafter=drafter, **options) as engine:  # type: ignore[arg-type]
            outputs = [tokens(run(engine, prompts, SHORT)) for prompts in (PROMPTS[1:], PROMPTS[2:])]
            found.append((outputs, drafter.guesses))
    assert found[0] == found[1]
    assert len(found[0][1]) > 20


def test_adapters(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Two adapters of queries, keys and outputs, and the plain model, answer in one batch as on one rank."""
    folder = model_folder("llama", **ONE_HEAD)
    sizes = {"q_proj": (64, 64), "k_proj": (16, 64), "o_proj": (64, 64)}
    modules = {f"model.layers.{index}.self_attn.{name}": size for index in (0, 2) for name, size in sizes.items()}
    adapters = []
    for number in (1, 2):
        path = write_adapter(tmp_path / str(number), low_rank(modules, seed=number))
        adapters.append(read_adapter(f"a{number}", str(path), "", number, path, 16, modules))
    requests = [
        GenerationRequest("r", PROMPTS[2], SHORT, each.name if each else "", each) for each in (None, *adapters)
    ]
    found = []
    for given in ({}, shared()):
        with running_engine(folder, enable_lora=True, max_loras=2, **given) as engine:
            found.append(tokens(run_requests(engine, requests)))
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0]))) == 3


def test_as_much_memory_holds_as_many_times_the_tokens(model_folder: ModelFolder) -> None:
    folder, sizes = model_folder("deepseek-v3"), []
    for context in (1, 2, 4):
        options = engine_options(
            dtype="float32", tensor_parallel_size=4, decode_context_parallel_size=context, cpu_threads=1,
            kv_cache_memory_bytes=2**20, use_tqdm_on_load=False,
        )  # fmt: skip
        executor = TensorExecutor()
        spec = executor.load(ModelOptions(model=str(folder)), options)
        sizes.append(size_kv_cache(spec, options).num_tokens)
        executor.close()
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, shared(), "1 ranks have each of this model's 2 key-value heads"),
        (ONE_HEAD, shared(4, decode_context_parallel_size=3), "3 does not divide --tensor-parallel-size 4"),
        (ONE_HEAD, shared(model_impl="transformers"), "does not support"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    model_folder: ModelFolder, changes: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(StartupError, match=words), running_engine(model_folder("llama", **changes), **options):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes", "options"), [("llama", ONE_HEAD, {"pipeline_parallel_size": 2}), ("deepseek-v3", {}, {})]
)
def test_over_processes(
    model_folder: ModelFolder, family: str, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    folder = model_folder(family, **changes)
    given = shared(max_num_batched_tokens=19, distributed_executor_backend="mp", **options) | {"executor": None}
    with running_engine(folder, **given) as engine:
        found = run(engine, PROMPTS, replace(SHORT, logprobs=4))
    check_answers(folder, PROMPTS, found, 16)
