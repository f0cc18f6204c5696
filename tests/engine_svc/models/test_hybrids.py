"""Models with recurrent states: Transformers' tokens, however the work is split; states stay with their sequences."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.models.decoder import Decoder
from engine_svc.models.registry import config_for
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.exact_answers import check_answers
from tests.support.native import needs_native
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import HYBRIDS, check_greedy, reference_logprobs

# Shorter than a convolution, a little more than its own and other blocks, and several chunks.
PROMPTS = random_prompts(1, 2, 17, 90)
SHORT = replace(GREEDY, max_tokens=12)
# One family of each kind of state.
KINDS = ("jamba", "bamba", "qwen3-next", "kimi-linear", "lfm2-bias", "minimax", "recurrent-gemma")


def check(folder: Path, **options: Any) -> None:
    sampling = replace(GREEDY, max_tokens=24, logprobs=4)
    with running_engine(folder, max_num_batched_tokens=11, mamba_block_size=16, **options) as engine:
        found = run(engine, PROMPTS, sampling)
        assert engine.load().counters.prefix_cache_hits == 0
        again = run(engine, PROMPTS[2:], sampling)
        assert engine.load().counters.prefix_cache_hits == 16 + 80
    check_answers(folder, PROMPTS, found, 24)
    check_answers(folder, PROMPTS[2:], again, 24)


@pytest.mark.parametrize("family", HYBRIDS)
def test_families(model_folder: ModelFolder, family: str) -> None:
    """Covers several sequences at once, in chunks that begin anywhere, and prompts that begin with saved states."""
    check(model_folder(family))


@pytest.mark.parametrize("family", KINDS)
def test_without_kernels(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family), cpu_kernels="torch")


@pytest.mark.parametrize(("family", "mamba_block_size"), [("jamba", 256), ("falcon-h1", 16), ("qwen3-next", 32)])
def test_preempted_ones_go_on(model_folder: ModelFolder, family: str, mamba_block_size: int) -> None:
    folder = model_folder(family)
    prompts = random_prompts(30, 31, 32, 33, 34)
    sampling = replace(GREEDY, max_tokens=40)
    with running_engine(folder, num_blocks=14, mamba_block_size=mamba_block_size) as engine:
        found = tokens(run(engine, prompts, sampling))
        assert engine.load().counters.preemptions > 0
    check_greedy(folder, prompts, found, 40)


def test_a_beginning_that_two_prompts_share_is_saved_by_the_second(model_folder: ModelFolder) -> None:
    folder = model_folder("qwen3-next")
    (shared,) = random_prompts(70)
    prompts = [shared + rest for rest in random_prompts(50, 60, 55)]
    with running_engine(folder, mamba_block_size=16) as engine:
        found, hits = [], []
        for prompt in prompts:
            found += run(engine, [prompt], replace(SHORT, logprobs=4))
            hits.append(engine.load().counters.prefix_cache_hits)
    assert hits == [0, 0, 64]
    check_answers(folder, prompts, found, 12)


def test_choices_begin_with_the_saved_state(model_folder: ModelFolder) -> None:
    folder = model_folder("bamba", initializer_range=0.1)
    (prompt,) = random_prompts(50)
    with running_engine(folder, mamba_block_size=16) as engine:
        run(engine, [prompt], replace(SHORT, temperature=1.0, n=4, seed=7))
        assert engine.load().counters.prefix_cache_hits == 3 * 48


@pytest.mark.parametrize(("family", "steps"), [("jamba", 1), ("granite-hybrid", 2), ("qwen3-next", 5)])
def test_slots_are_used_again(model_folder: ModelFolder, family: str, steps: int) -> None:
    """Slots of sequences aborted in the middle of a prompt or answer are reused by others."""
    folder = model_folder(family)
    with running_engine(folder, max_num_seqs=2, max_num_batched_tokens=32) as engine:
        expected = [tokens(run(engine, [prompt], SHORT))[0] for prompt in PROMPTS]
        for round_ in range(2):
            for key in range(2):
                engine.add(2 * round_ + key, GenerationRequest("r", PROMPTS[3 - key], GREEDY))
            for _ in range(steps):
                engine.step()
            for key in range(2):
                engine.abort(2 * round_ + key)
            engine.step()
            assert tokens(run(engine, PROMPTS, SHORT)) == expected
    check_greedy(folder, PROMPTS, expected, 12)


def test_choices_compute_the_prompt_each(model_folder: ModelFolder) -> None:
    folder = model_folder("bamba", initializer_range=0.1)
    (prompt,) = random_prompts(50)
    sampling = replace(GREEDY, temperature=1.0, n=4, seed=7)
    with running_engine(folder, max_num_batched_tokens=33) as engine:
        ((*choices,),) = run(engine, [prompt], sampling)
        ((again,),) = run(engine, [prompt], replace(sampling, n=1))
        assert engine.load().counters.computed_tokens >= 5 * 50
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    assert again.token_ids == choices[0].token_ids


@pytest.mark.parametrize(
    ("family", "options", "tolerance"),
    [
        ("bamba", {}, 1e-4),
        ("qwen3-next", {}, 1e-4),
        ("jamba", {"mamba_cache_dtype": "bfloat16"}, 0.3),
        ("qwen3-next", {"mamba_cache_dtype": "bfloat16"}, 0.3),
        pytest.param("jamba", {"dtype": "bfloat16"}, 0.5, marks=needs_native),
        pytest.param("bamba", {"dtype": "bfloat16"}, 0.5, marks=needs_native),
        pytest.param("jamba", {"dtype": "float16", "mamba_ssm_cache_dtype": "float16"}, 0.1, marks=needs_native),
        pytest.param("qwen3-next", {"dtype": "float16", "mamba_ssm_cache_dtype": "float16"}, 0.1, marks=needs_native),
    ],
)
def test_logprobs(model_folder: ModelFolder, family: str, options: dict[str, Any], tolerance: float) -> None:
    """Compares log-probabilities of prompt and answer with float64 ones for the same tokens."""
    experts = {"jamba": 4, "qwen3-next": 6}.get(family)  # all of them, since rounding would decide close choices
    changes = {"num_experts_per_tok": experts} if experts else {}
    # Rounding errors of the delta rule grow: with smaller weights it is as uncertain as the other families.
    folder = model_folder(family, initializer_range=0.05 if family == "qwen3-next" else 0.1, **changes)
    (prompt,) = random_prompts(70)
    with running_engine(folder, max_num_batched_tokens=32, **options) as engine:
        ((output,),) = run(engine, [prompt], replace(SHORT, logprobs=0, prompt_logprobs=0))
    expected = reference_logprobs(folder, prompt + output.token_ids)[:-1]
    found = torch.tensor([position.logprobs[0] for position in output.prompt_logprobs + output.logprobs])
    exact = expected.gather(1, torch.tensor((prompt + output.token_ids)[1:])[:, None])[:, 0].float()
    assert (found - exact).abs().max() < tolerance
    assert (found - exact).abs().mean() < tolerance / 4


@pytest.mark.parametrize("family", [
    "jamba", "bamba", "bamba-plain", "qwen3-next", "falcon-mamba", "lfm2-moe", "nemotron-h-latent", "falcon-h1",
    "falcon-h1-norms", "minimax", "olmo-hybrid", "kimi-linear", "recurrent-gemma", "lfm3",
])  # fmt: skip
def test_on_two_ranks(model_folder: ModelFolder, family: str) -> None:
    """They are threads; the tests of pipelines have ranks that are processes, with such a model too."""
    folder, ranks = model_folder(family), {"executor": TensorExecutor(), "tensor_parallel_size": 2, "cpu_threads": 1}
    with running_engine(folder, max_num_batched_tokens=33, mamba_block_size=16, **ranks) as engine:
        found = [run(engine, PROMPTS, replace(GREEDY, max_tokens=8, logprobs=4)) for _ in range(2)]
        assert engine.load().counters.prefix_cache_hits == 16 + 80
    for each in found:
        check_answers(folder, PROMPTS, each, 8)


def test_a_step_that_raises_is_not_run_again(model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests end, since layers before the failing one have already changed states. Later requests are fine."""
    folder = model_folder("jamba")
    with running_engine(folder, enforce_eager=True) as engine:
        expected = tokens(run(engine, PROMPTS, SHORT))
        forward, calls = Decoder.forward, []

        def once(*arguments: Any) -> torch.Tensor:
            calls.append(arguments)
            if len(calls) == 3:
                raise RuntimeError("no")
            return forward(*arguments)

        monkeypatch.setattr(Decoder, "forward", once)
        for key in range(2):
            engine.add(key, GenerationRequest("r", PROMPTS[key], SHORT))
        errors = [delta.error for _ in range(3) for delta in engine.step() if delta.is_final]
        assert len(errors) == 2
        assert all("failed while running this request" in str(error) for error in errors)
        assert len(calls) == 3
        assert tokens(run(engine, PROMPTS, SHORT)) == expected


def test_the_text_model_of_one_that_sees_images(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Qwen3.5's checkpoints look like this; they also have vision layers, and a layer that drafts."""
    folder = shutil.copytree(model_folder("qwen3.5-moe"), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("model.", "model.language_model.") if "lm_head" not in name else name: tensor
        for name, tensor in written.items()
    }
    more = {"model.visual.blocks.0.norm1.weight": torch.ones(8), "mtp.layers.0.input_layernorm.weight": torch.ones(8)}
    save_file(renamed | more, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text,
        "vision_config": {},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    with running_engine(folder, limit_mm_per_prompt="image=0,video=0") as engine:
        found = tokens(run(engine, PROMPTS, SHORT))
    check_greedy(model_folder("qwen3.5-moe"), PROMPTS, found, 12)


# What released checkpoints have in config.json instead of what Transformers writes; None means absent.
_MINIMAX = {
    "architectures": ["MiniMaxText01ForCausalLM"], "layer_types": None, "attn_type_list": [0, 1, 0],
    "linear_attn_alpha_factor": None, "linear_attn_beta_factor": None, "full_attn_alpha_factor": None,
    "full_attn_beta_factor": None, "mlp_alpha_factor": None, "mlp_beta_factor": None,
    "layernorm_linear_attention_alpha": 1.5, "layernorm_linear_attention_beta": 0.8,
    "layernorm_full_attention_alpha": 1.2, "layernorm_full_attention_beta": 1.0, "layernorm_mlp_alpha": 1.0,
    "layernorm_mlp_beta": 0.7, "rotary_dim": 16,
}  # fmt: skip
RELEASED: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": None, "full_attn_idxs": [1], "intermediate_size": None, "block_ff_dim": 96,
             "tie_word_embeddings": None, "tie_embedding": True},
    "nemotron-h": {"layers_block_type": None, "layer_types": None, "hybrid_override_pattern": "ME*-M"},
    "minimax": _MINIMAX,
    "recurrent-gemma": {"block_types": None, "_block_types": ["recurrent", "recurrent", "attention"],
                        "rope_parameters": None, "partial_rotary_factor": 0.5},
    "kimi-linear": {
        "layer_types": None, "mlp_layer_types": None, "first_k_dense_replace": 1, "linear_head_dim": None,
        "linear_num_heads": None, "linear_conv_kernel_dim": None, "mla_use_nope": True,
        "linear_attn_config": {
            "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("family", RELEASED)
def test_released_configurations(model_folder: ModelFolder, family: str) -> None:
    """Configurations of released checkpoints mean the same as those that Transformers writes."""
    written = json.loads((model_folder(family) / "config.json").read_text())
    released = {name: value for name, value in (written | RELEASED[family]).items() if value is not None}
    found, expected = config_for(released), config_for(written)
    if family == "minimax":  # only part of its heads may be rotated
        expected = dataclasses.replace(expected, rope_parameters=found.rope_parameters)
    assert dataclasses.replace(found, architecture=expected.architecture) == expected


def test_kimi_linear_with_positions_is_refused(model_folder: ModelFolder) -> None:
    written = json.loads((model_folder("kimi-linear") / "config.json").read_text())
    with pytest.raises(StartupError, match="mla_use_nope"):
        config_for(written | {"mla_use_nope": False})


@pytest.mark.parametrize(
    ("family", "field"), [("jamba", "hidden_act"), ("granite-hybrid", "hidden_act"), ("nemotron-h", "mamba_hidden_act")]
)
def test_other_activations_of_recurrent_layers_are_refused(model_folder: ModelFolder, family: str, field: str) -> None:
    written = json.loads((model_folder(family) / "config.json").read_text())
    with pytest.raises(StartupError, match="the activation 'gelu'; for recurrent layers"):
        config_for(written | {field: "gelu"})
