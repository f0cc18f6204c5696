"""Greedy float32 output of the engine equals Transformers', token for token, however the work is split."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.models import build
from engine_svc.executor.base import create_executor
from engine_svc.models.config import rope_parameters
from engine_svc.models.registry import ARCHITECTURES, config_for
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.native import AVAILABLE, every_level
from tests.support.rounding_attention import register_rounding
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import (
    FAMILIES,
    LONGROPE,
    OTHERS,
    ROPES,
    check_greedy,
    reference_logprobs,
    reference_tokens,
)

# One token, a block, a little more, and several blocks, beyond the positions from which rotary scaling stretches.
PROMPTS = random_prompts(1, 16, 17, 90)
# Answers leave every window, and the blocks in which they begin.
ANSWER = 24
# For ranks, which take longer: still out of a window and a block for the prompt that fills both.
FEW = 8
# Families that differ in how they attend: everywhere, in windows with soft caps, with heads of two kinds and borrowed
# keys and values, to compressed ones, with linear biases.
ATTENTION_FAMILIES = ("llama", "gemma2", "gemma4-small", "deepseek-v3", "bloom")
# Families that differ in their kernels: windows and soft caps, experts, latent attention, head norms, linear biases,
# learned activations.
LEVEL_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {}, "mixtral": {}, "deepseek-v3": {"kv_lora_rank": 24}, "qwen3": {},
    "bloom": {}, "apertus": {},
}  # fmt: skip

# Architecture → type of model.
KINDS = {name: kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if isinstance(name, str)}
SIZES = (
    "architectures", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "max_position_embeddings", "n_routed_experts", "num_experts", "num_local_experts",
    "num_experts_per_tok",
)  # fmt: skip
WITH_DEFAULTS = (
    "AXK1", "AXK2", "Afmoe", "Apertus", "Arcee", "AriaText", "Beam", "Cohere2Moe", "Cwm", "ExaoneMoe", "Flint",
    "Gemma3n", "Gemma4", "Gemma4Unified", "GraniteMoeSWA", "GraniteSWA", "HYV3", "HyperCLOVAX", "Jais2", "Kolibri1",
    "Laguna", "Mellum", "MiniCPM3", "MiniMaxM3VL", "Ministral", "NanoChat", "Nemotron", "SolarOpen", "VaultGemma",
    "Youtu",
)  # fmt: skip


def two_ranks() -> dict[str, Any]:
    return {"executor": TensorExecutor(), "tensor_parallel_size": 2, "cpu_threads": 1}


def check(folder: Path, same: Path | None = None, max_tokens: int = ANSWER, **options: Any) -> None:
    """Compares with what Transformers makes of the folder, or of one with the same weights that it can read."""
    with running_engine(folder, **options) as engine:
        found = run(engine, PROMPTS, replace(GREEDY, max_tokens=max_tokens, logprobs=4))
    check_answers(same or folder, PROMPTS, found, max_tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_backends_that_use_torch(model_folder: ModelFolder, family: str, backend: str) -> None:
    """The first is the one of processors without kernels; the second is what all backends are compared with."""
    check(model_folder(family), attention_backend=backend)


@every_level
def test_families_on_each_level(model_folder: ModelFolder, level: str) -> None:
    """Each level runs a third of the families, and the next level the next third; `test_families` runs the best."""
    at = AVAILABLE.index(level)
    for family, changes in [*LEVEL_FAMILIES.items()][at % 3 :: 3]:
        check(model_folder(family, **changes), cpu_kernels=level)


@pytest.mark.parametrize("family", OTHERS)
def test_models_of_transformers(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family), max_num_batched_tokens=33)


def test_other_quantized_weights_are_refused(model_folder: ModelFolder, tmp_path: Path) -> None:
    config = json.loads((model_folder("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "aqlm"}}))
    with pytest.raises(StartupError, match="quantized by aqlm"), running_engine(tmp_path):
        pass


def test_internlm3_by_the_names_of_its_own_code(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder("internlm3"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    bias = {"qkv_bias": config.pop("attention_bias"), "bias": config.pop("mlp_bias")}
    (folder / "config.json").write_text(json.dumps(config | bias | {"architectures": ["InternLM3ForCausalLM"]}))
    check(folder)


@pytest.mark.parametrize(("family", "model_type"), [("falcon", "RefinedWebModel"), ("falcon-40b", "RefinedWeb")])
def test_falcon_by_the_names_of_its_own_code(
    model_folder: ModelFolder, family: str, model_type: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["new_decoder_architecture"]
    names = {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_head_kv": "num_kv_heads"}
    own = {name: config.pop(ours) for name, ours in names.items()}
    changes = {"architectures": ["RWForCausalLM"], "model_type": model_type}
    (folder / "config.json").write_text(json.dumps(config | own | changes))
    check(folder, model_folder(family))


@pytest.mark.parametrize(("family", "around"), [("gpt2", "transformer."), ("opt", "model.")])
def test_names_of_checkpoints_of_the_layers_alone(
    model_folder: ModelFolder, family: str, around: str, tmp_path: Path
) -> None:
    """The first checkpoints were saved without the outer model's prefix, and with attention mask buffers."""
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    tensors = {name.removeprefix(around): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 256, 256), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    file = folder / "model.safetensors"
    save_file(tensors | (masks if family == "gpt2" else {}), file, metadata={"format": "pt"})
    check(folder, model_folder(family))


@pytest.mark.parametrize("family", ["gemma2", "qwen3-moe"])
def test_families_by_transformers(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family), model_impl="transformers")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["StrangeForCausalLM"]}, "StrangeForCausalLM"),
        ({"architectures": ["StrangeForCausalLM"], "model_type": "strange"}, "StrangeForCausalLM"),
        ({"architectures": ["BigBirdForCausalLM"], "model_type": "big_bird"}, "attention interface"),
        ({"architectures": ["MPTForCausalLM"], "attn_config": {"qk_ln": True}}, "attn_config has qk_ln True"),
        ({"architectures": ["PhiForCausalLM"], "tie_word_embeddings": True}, "output layer with a bias"),
        ({"architectures": ["MPTForCausalLM"], "attn_config": {"alibi": False}}, "attn_config has alibi False"),
        ({"architectures": ["NanoChatForCausalLM"], "rope_parameters": ROPES["yarn"]}, "only default is supported"),
        ({"architectures": ["GraniteSWAForCausalLM"], "layer_rope_theta": [1e4, 1e4, 1e5]}, "layer_rope_theta differs"),
        ({"architectures": ["Cohere2MoeForCausalLM"], "expert_selection_fn": "relu"}, "expert_selection_fn 'relu'"),
        (
            {"architectures": ["DbrxForCausalLM"], "ffn_config": {"moe_normalize_expert_weights": 2.0}},
            "moe_normalize_expert_weights 2.0",
        ),
        ({"architectures": ["LagunaForCausalLM"], "gating": False}, "gating is false"),
        ({"architectures": ["LongcatFlashForCausalLM"], "zero_expert_type": "drop"}, "zero_expert_type is 'drop'"),
        ({"architectures": ["GPT2LMHeadModel"], "scale_attn_by_inverse_layer_idx": True}, "--model-impl transformers"),
    ],
)
def test_models_that_nobody_runs(
    model_folder: ModelFolder, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = json.loads((model_folder("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(StartupError, match=words), running_engine(tmp_path):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"tensor_parallel_size": 2}, "--tensor-parallel-size", marks=pytest.mark.slow),
        ({"quantization": "int8"}, "--quantization"),
        ({"load_format": "dummy"}, "--load-format"),
        ({"cpu_kernels": "avx2"}, "--cpu-kernels"),
    ],
)
def test_what_transformers_cannot_do_is_refused(model_folder: ModelFolder, options: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words), running_engine(model_folder("biogpt"), **options):
        pass


@pytest.mark.parametrize("rope", ROPES)
def test_rope_scalings(model_folder: ModelFolder, rope: str) -> None:
    check(model_folder("llama", rope_parameters=ROPES[rope]))


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3"])
def test_compressed_attention_with_yarn(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family, rope_parameters=ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 0.7}))


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3"])
def test_compressed_attention_caches_one_vector_a_token(model_folder: ModelFolder, family: str) -> None:
    """Holds with chunked prompts, and on two ranks, each of which caches the whole vector."""
    folder = model_folder(family)
    check(folder, max_num_batched_tokens=7, **two_ranks())
    executor = create_executor(ParallelOptions())
    spec = executor.load(ModelOptions(model=str(folder)), engine_options(dtype="float32"))
    executor.close()
    assert spec.bytes_per_block == 3 * 16 * (16 + 8) * 4


@pytest.mark.parametrize(("max_model_len", "prompt_tokens", "max_tokens"), [(32, 20, 12), (256, 40, 64)])
def test_longrope(model_folder: ModelFolder, max_model_len: int, prompt_tokens: int, max_tokens: int) -> None:
    """Covers sequences that are short, by Transformers' rules too, and long ones."""
    folder = model_folder("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32, sliding_window=None)
    prompts = random_prompts(prompt_tokens)
    expected = reference_tokens(folder, prompts, max_tokens)
    with running_engine(folder, max_model_len=max_model_len) as engine:
        assert tokens(run(engine, prompts, replace(GREEDY, max_tokens=max_tokens))) == expected


def test_families_have_thetas_of_their_own() -> None:
    """If config.json has no theta, the defaults of Transformers' classes apply."""
    theirs = {
        name: getattr(CONFIG_MAPPING[KINDS[name]]().get_text_config(), "rope_parameters", None) or {}
        for name in ARCHITECTURES if name in KINDS
    }  # fmt: skip
    expected = {name: found["rope_theta"] for name, found in theirs.items() if "rope_theta" in found}
    found = {name: rope_parameters({"architectures": [name]})["rope_theta"] for name in expected}
    assert found == expected
    assert len(found) > 30


@pytest.mark.parametrize("name", WITH_DEFAULTS)
def test_a_config_without_fields(name: str) -> None:
    """If config.json has only the sizes, which no model can leave out, the defaults of Transformers' classes apply."""
    whole = CONFIG_MAPPING[KINDS[f"{name}ForCausalLM"]]().to_dict() | {"architectures": [f"{name}ForCausalLM"]}
    assert config_for({field: value for field, value in whole.items() if field in SIZES}) == config_for(whole)


@pytest.mark.parametrize("family", ["minimax", "mixtral", "smollm3", "olmo3"])
def test_a_config_without_a_theta(model_folder: ModelFolder, family: str) -> None:
    folder = model_folder(family)
    written = json.loads((folder / "config.json").read_text())
    theirs = AutoConfig.for_model(**{**written, "rope_parameters": None}).rope_parameters
    theta = theirs.get("full_attention", theirs)["rope_theta"]
    del written["rope_parameters"]
    assert config_for(written).rope_parameters["rope_theta"] == theta > 10000.0


def test_the_first_name_of_longrope() -> None:
    factors = {name: LONGROPE[name] for name in ("short_factor", "long_factor")}
    found = rope_parameters({"rope_theta": 10000.0, "rope_scaling": factors | {"type": "su"}})
    assert found == factors | {"rope_type": "longrope", "rope_theta": 10000.0}


def test_dynamic_rope_past_the_trained_length(model_folder: ModelFolder) -> None:
    """Compares tokens while decoding, where Transformers' result does not depend on how it was called."""
    folder = model_folder("llama", rope_parameters=ROPES["dynamic"], max_position_embeddings=32)
    (prompt,) = random_prompts(30)
    expected = reference_tokens(folder, [prompt], 20)
    with running_engine(folder) as engine:
        assert tokens(run(engine, [prompt], replace(GREEDY, max_tokens=20))) == expected


@pytest.mark.parametrize(("family", "budget"), [("mistral", 1), ("llama", 7), ("mistral", 16), ("opt", 33)])
def test_chunked_prefill(model_folder: ModelFolder, family: str, budget: int) -> None:
    """One token at a time, less than a block, a whole one, and more; with windows, and with learned positions."""
    check(model_folder(family), max_num_batched_tokens=budget)


@pytest.mark.parametrize("block_size", [8, 32])
def test_block_sizes(model_folder: ModelFolder, block_size: int) -> None:
    check(model_folder("mistral"), block_size=block_size)


def test_without_chunks_and_without_prefix_cache(model_folder: ModelFolder) -> None:
    check(model_folder("qwen3"), enable_chunked_prefill=False, enable_prefix_caching=False)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma4-small", "deepseek-v3", "llama4"])
def test_prefix_cache_hits(model_folder: ModelFolder, family: str) -> None:
    """Each family keeps another set of blocks: all, those in windows, both, of two kinds, compressed, of a chunk."""
    folder = model_folder(family)
    (shared,) = random_prompts(70)
    prompts = [shared + tail for tail in random_prompts(3, 20, 1, seed=1)] + [shared]
    with running_engine(folder) as engine:
        run(engine, [shared], replace(GREEDY, max_tokens=1))
        outputs = run(engine, prompts, replace(GREEDY, max_tokens=ANSWER, logprobs=4))
    check_answers(folder, prompts, outputs, ANSWER)
    assert [output.usage.cached_prompt_tokens for (output,) in outputs if output.usage] == [64] * 4


@pytest.mark.parametrize(("family", "num_blocks"), [("llama", 14), ("mistral", 14), ("gemma4-small", 14)])
def test_preemption(model_folder: ModelFolder, family: str, num_blocks: int) -> None:
    """The cache cannot hold all sequences: some lose their blocks and are computed again."""
    folder = model_folder(family)
    prompts = random_prompts(30, 31, 32, 33, 34)
    sampling = replace(GREEDY, max_tokens=40, logprobs=4)
    with running_engine(folder, num_blocks=num_blocks, enable_prefix_caching=False) as engine:
        outputs = run(engine, prompts, sampling)
        assert engine.load().counters.preemptions > 0
    check_answers(folder, prompts, outputs, 40)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("cpu", "auto"),
        ("reference", "auto"),
        pytest.param("triton", "auto", marks=pytest.mark.slow),
        ("cpu", "fp8_e4m3"),
    ],
)
def test_blocks_come_back_from_the_host(model_folder: ModelFolder, backend: str, dtype: str) -> None:
    layers, length, most = (2, 33, 2) if backend == "triton" else (3, 60, 4)  # the interpreter is slow
    folder = model_folder("llama", num_hidden_layers=layers)
    prompts, sampling = random_prompts(length, length, length), replace(GREEDY, max_tokens=most)
    with running_engine(folder, attention_backend=backend, kv_cache_dtype=dtype) as engine:
        expected = tokens(run(engine, prompts, sampling))
    if dtype == "auto":
        check_greedy(folder, prompts, expected, most)
    with running_engine(
        folder, num_blocks=6, num_host_blocks=20, attention_backend=backend, kv_cache_dtype=dtype
    ) as engine:
        for _ in range(2):
            outputs = [run(engine, [prompt], sampling)[0] for prompt in prompts]
            assert tokens(outputs) == expected
    assert [output.usage.cached_prompt_tokens for (output,) in outputs if output.usage] == [length // 16 * 16] * 3


@pytest.mark.slow
@pytest.mark.parametrize("steps_ahead", [True, False])
def test_overlapped_steps(model_folder: ModelFolder, steps_ahead: bool) -> None:
    """Steps planned before the last one's tokens are known give the same output, with all sampling state."""
    folder = model_folder("llama")
    sampling = SamplingParameters(
        n=2, seed=3, max_tokens=40, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2,
        prompt_logprobs=1, stop_token_ids=[3, 5, 8],
    )  # fmt: skip
    prompts = random_prompts(30, 31, 32, 33)
    found = []
    for backend in ("uni", "mp"):
        with running_engine(
            folder, num_blocks=14, distributed_executor_backend=backend, async_scheduling=steps_ahead, cpu_threads=1
        ) as engine:
            found.append(run(engine, prompts, sampling))
            assert engine.load().counters.preemptions > 0
    for one, other in zip(*(itertools.chain(*outputs) for outputs in found), strict=True):
        assert (one.token_ids, one.finish_reason, one.stop_token_id) == (
            other.token_ids, other.finish_reason, other.stop_token_id
        )  # fmt: skip
        for kind in ("logprobs", "prompt_logprobs"):
            pairs = list(zip(getattr(one, kind), getattr(other, kind), strict=True))
            assert all(ours.token_ids == theirs.token_ids for ours, theirs in pairs)
            assert all(ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4) for ours, theirs in pairs)
    assert {output.finish_reason for output in itertools.chain(*found[0])} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("family", [
    "llama-untied", "qwen2-moe", "gemma3", "gemma3n", "gemma4", "gemma4-small", "mimo", "olmo2", "phi3", "cohere-norms",
    "codegen", "falcon-40b", "bloom", "phi", "gpt2", "gpt-bigcode", "opt-projected", "stablelm-12b", "xglm",
    "minicpm3", "nanochat", "granite-swa", "apertus",
])  # fmt: skip
def test_tensor_parallel(model_folder: ModelFolder, family: str) -> None:
    """Of each kind of layer that is sharded. Ranks are threads here, and processes in the next test but one."""
    check(model_folder(family), max_tokens=FEW, **two_ranks())


def test_more_ranks_than_key_value_heads(model_folder: ModelFolder) -> None:
    """In a family that normalizes all heads of a token together, heads that two ranks hold must count only once."""
    check(model_folder("olmo2"), max_tokens=FEW, **two_ranks() | {"tensor_parallel_size": 4})


@pytest.mark.slow
def test_tensor_parallel_ranks_draw_what_one_draws(tmp_path: Path) -> None:
    """With so many sequences, ranks do not gather their logits; one sequence at the end needs its whole row of them."""
    build("tiny-llama", tmp_path)
    plain = [
        {"temperature": 0.0}, {"seed": 1}, {"temperature": 0.6, "min_p": 0.05, "seed": 2}, {"top_k": 9, "seed": 3},
        {"temperature": 0.05, "top_p": 0.8, "seed": 4}, {"presence_penalty": 2.0, "temperature": 0.1, "seed": 5},
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1}, {"top_p": 0.5, "seed": 6},
    ]  # fmt: skip
    wanted = [*(64 * plain)[:64], {"top_k": 5000, "seed": 3, "max_tokens": 8}]
    asked = [
        GenerationRequest("r", prompt, SamplingParameters(**cast("Any", {"max_tokens": 4, "ignore_eos": True} | some)))
        for prompt, some in zip(random_prompts(*[5] * 65), wanted, strict=True)
    ]
    found = []
    for ranks in (1, 2):
        options: dict[str, Any] = {"tensor_parallel_size": ranks, "cpu_threads": 1, "max_num_seqs": 65}
        with running_engine(tmp_path, **options) as engine:
            found.append([tokens(run_requests(engine, some)) for some in (asked[:64], asked)])
    assert found[0] == found[1]


@pytest.mark.parametrize(("family", "dtype"), [("llama", "fp8_e4m3"), ("qwen3", "fp8_e5m2")])
def test_kv_cache_of_8_bits(model_folder: ModelFolder, family: str, dtype: str) -> None:
    """Equals Transformers with an attention that rounds keys and values in the same way."""
    rounding = register_rounding({"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[dtype])
    folder = model_folder(family)
    prompts = random_prompts(16, 90)
    expected = reference_tokens(folder, prompts, ANSWER, attn_implementation=rounding)
    assert expected != reference_tokens(folder, prompts, ANSWER)
    for backend in ("native", "cpu", "reference") if AVAILABLE else ("cpu", "reference"):
        with running_engine(folder, kv_cache_dtype=dtype, attention_backend=backend) as engine:
            assert tokens(run(engine, prompts, replace(GREEDY, max_tokens=ANSWER))) == expected


def test_scales_of_the_kv_cache_are_calculated(model_folder: ModelFolder) -> None:
    """Scales are calculated per layer, in Quire's own models and in those that Transformers runs."""
    folder = model_folder("qwen3")
    (prompt,) = random_prompts(60)
    sampling = replace(GREEDY, max_tokens=1, prompt_logprobs=0)
    reference = reference_logprobs(folder, prompt)
    for model_impl in ("quire", "transformers"):
        with running_engine(folder, model_impl=model_impl, kv_cache_dtype="fp8", calculate_kv_scales=True) as engine:
            ((output,),) = run(engine, [prompt], sampling)
        errors = [
            abs(position.logprobs[0] - float(reference[index, position.token_ids[0]]))
            for index, position in enumerate(output.prompt_logprobs)
        ]
        assert 0.001 < sum(errors) / len(errors) < 0.5
    with pytest.raises(StartupError, match="--kv-cache-dtype fp8"), running_engine(folder, calculate_kv_scales=True):
        pass


def test_an_activation_by_another_of_its_names(model_folder: ModelFolder) -> None:
    """GPT-NeoX 20B uses this name; in float32 it is the activation that most checkpoints name differently."""
    check(model_folder("gpt-neox", hidden_act="gelu_fast"))


def test_a_cache_in_bfloat16_is_for_models_that_ask_for_8_bits(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = model_folder("llama")
    with pytest.raises(StartupError, match="leave it at auto"), running_engine(folder, kv_cache_dtype="bfloat16"):
        pass
    with running_engine(
        folder, hf_overrides={"index_topk": 2048}, kv_cache_dtype="bfloat16", dtype="bfloat16"
    ) as engine:
        found = tokens(run(engine, PROMPTS))
    with running_engine(folder, dtype="bfloat16") as engine:
        assert tokens(run(engine, PROMPTS)) == found


def test_sharded_checkpoint(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    check(folder)


BFLOAT16, FLOAT16, TORCH = {"dtype": "bfloat16"}, {"dtype": "float16"}, {"cpu_kernels": "torch"}


@pytest.mark.parametrize(
    ("family", "options", "tolerance"),
    [
        ("qwen3", BFLOAT16, 0.12), ("phi3-partial", BFLOAT16, 0.12), ("mixtral", BFLOAT16, 0.12),
        ("gemma2", BFLOAT16 | TORCH | {"attention_backend": "cpu"}, 0.12),
        ("mixtral", BFLOAT16 | TORCH | {"attention_backend": "cpu"}, 0.12),
        ("qwen3", FLOAT16, 0.02), ("phi3-partial", FLOAT16, 0.02), ("gemma2", FLOAT16, 0.02),
        ("llama", BFLOAT16 | {"quantization": "int8"}, 0.4), ("mixtral", BFLOAT16 | {"quantization": "int8"}, 0.4),
        ("gemma2", {"dtype": "float32", "quantization": "int8"}, 0.4),
        ("phi3-partial", {"dtype": "float32", "quantization": "int8"}, 0.4),
    ],
)  # fmt: skip
def test_less_precision_is_close(
    model_folder: ModelFolder, family: str, options: dict[str, Any], tolerance: float
) -> None:
    """Pairs layers that differ in their products, norms, activations and rotations with types and implementations."""
    check_close(model_folder, family, options, tolerance)


@pytest.mark.parametrize("family", ["gpt2", "opt-projected", "stablelm-12b", "starcoder2"])
def test_eight_bits_are_close(model_folder: ModelFolder, family: str) -> None:
    check_close(model_folder, family, {"quantization": "int8"}, 0.4)


@every_level
def test_less_precision_is_close_on_each_level(model_folder: ModelFolder, level: str) -> None:
    """Each level runs each type with another family, and the next level with the next one."""
    forms = [(BFLOAT16, 0.12), (FLOAT16, 0.02), (FLOAT16 | {"quantization": "int8"}, 0.4)]
    for index, (options, tolerance) in enumerate(forms, AVAILABLE.index(level)):
        family = ("llama", "gemma2", "mixtral")[index % 3]
        check_close(model_folder, family, options | {"cpu_kernels": level}, tolerance)


def check_close(model_folder: ModelFolder, family: str, options: dict[str, Any], tolerance: float) -> None:
    """Compares the sampled tokens' log-probabilities with float64 ones for the same tokens."""
    # All experts for every token: where the choice is close, rounding would change it.
    changes = {"num_experts_per_tok": 4} if family in ("mixtral", "gpt-oss", "llama4") else {}
    folder = model_folder(family, initializer_range=0.1, **changes)
    (prompt,) = random_prompts(40)
    with running_engine(folder, **options) as engine:
        ((output,),) = run(engine, [prompt], replace(GREEDY, logprobs=0))
    expected = reference_logprobs(folder, prompt + output.token_ids)[len(prompt) - 1 : -1]
    found = torch.tensor([position.logprobs[0] for position in output.logprobs])
    exact = expected.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0].float()
    error = (found - exact).abs()
    # Only the size of the error matters: kernels round in different places.
    assert error.max() < tolerance
    assert error.mean() < tolerance / 4


@pytest.mark.parametrize("family", ["qwen2", "minicpm3", "nanochat"])
def test_logprobs(model_folder: ModelFolder, family: str) -> None:
    """Includes models whose logits are scaled or capped, which does not change the likeliest token."""
    folder = model_folder(family, initializer_range=0.1)
    prompts = random_prompts(20, 70)
    with running_engine(folder, max_num_batched_tokens=32) as engine:
        outputs = run(engine, prompts, replace(GREEDY, max_tokens=ANSWER, logprobs=3, prompt_logprobs=2))
    for prompt, (output,) in zip(prompts, outputs, strict=True):
        every = reference_logprobs(folder, prompt + output.token_ids)[:-1]
        assert len(output.prompt_logprobs) == len(prompt) - 1
        positions = output.prompt_logprobs + output.logprobs
        for row, token, position, count in zip(
            every, (prompt + output.token_ids)[1:], positions, [2] * (len(prompt) - 1) + [3] * ANSWER, strict=True
        ):
            assert position.token_ids[0] == token
            assert position.logprobs[0] == pytest.approx(row[token].item(), abs=1e-4)
            assert position.rank == int((row > row[token]).sum()) + 1
            best = row.topk(count)
            assert position.token_ids[1:] == best.indices.tolist()
            assert position.logprobs[1:] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_choices_share_the_prompt_and_are_those_of_single_requests(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", initializer_range=0.05)
    (prompt,) = random_prompts(50)
    sampling = replace(GREEDY, temperature=1.0, n=4, seed=7)
    with running_engine(folder) as engine:
        ((*choices,),) = run(engine, [prompt], sampling)
        ((again,),) = run(engine, [prompt], replace(sampling, n=1))
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    assert again.token_ids == choices[0].token_ids


def test_a_seed_gives_the_same_tokens_in_any_batch(model_folder: ModelFolder) -> None:
    folder = model_folder("llama", initializer_range=0.05)
    prompts = random_prompts(10, 20, 30, 33)
    sampling = replace(GREEDY, temperature=0.9, top_p=0.95, top_k=50, seed=3, presence_penalty=0.5)
    with running_engine(folder) as engine:
        together = tokens(run(engine, prompts, sampling))
        alone = [tokens(run(engine, [prompt], sampling))[0] for prompt in prompts]
    with running_engine(folder, num_blocks=10, max_num_batched_tokens=16) as engine:
        preempted = tokens(run(engine, prompts, sampling))
    assert together == alone == preempted


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_triton_backend(model_folder: ModelFolder, family: str) -> None:
    """Runs in Triton's interpreter: few tokens, but every kernel is used."""
    prompts = random_prompts(5, 20)
    folder = model_folder(family)
    with running_engine(folder, attention_backend="triton", max_num_batched_tokens=16) as engine:
        found = run(engine, prompts, replace(GREEDY, max_tokens=6, logprobs=4))
    check_answers(folder, prompts, found, 6)
