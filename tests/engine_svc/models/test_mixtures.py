"""Mixture-of-experts families: greedy float32 output of the engine equals Transformers', token for token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import AXK2Config

from engine_svc.models.registry import config_for, is_ours
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_exactness import check_close
from tests.support.exact_answers import check_answers
from tests.support.native import AVAILABLE, every_level
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_models import LONGROPE, check_greedy, reference_tokens

PROMPTS, SAMPLING = random_prompts(1, 17, 50), replace(GREEDY, max_tokens=20, logprobs=4)
# They use operations that other families do not: gates, biases, sinks, chunks, another choice of experts.
OWN_WAYS = ("gemma4-moe", "gpt-oss", "llama4", "phimoe")


def check(folder: Path, **options: Any) -> None:
    with running_engine(folder, **options) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers(folder, PROMPTS, found, SAMPLING.max_tokens or 0)


@pytest.mark.parametrize("family", MIXTURES)
def test_families(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family))


@pytest.mark.parametrize("family", OWN_WAYS)
def test_in_chunks_by_torch(model_folder: ModelFolder, family: str) -> None:
    check(model_folder(family), max_num_batched_tokens=33, cpu_kernels="torch", attention_backend="cpu")


@pytest.mark.parametrize(("family", "dtype", "tolerance"), [("gpt-oss", "bfloat16", 0.12), ("llama4", "float16", 0.02)])
def test_less_precision_is_close(model_folder: ModelFolder, family: str, dtype: str, tolerance: float) -> None:
    check_close(model_folder, family, {"dtype": dtype}, tolerance)


@pytest.mark.parametrize(("max_model_len", "prompt_tokens", "max_tokens"), [(32, 20, 12), (256, 40, 24)])
def test_longrope_of_phimoe(model_folder: ModelFolder, max_model_len: int, prompt_tokens: int, max_tokens: int) -> None:
    """Cosines and sines are scaled differently for short and long contexts. Uses the checkpoints' architecture name.

    Transformers uses the short rotary factors at any length, unlike the code that came with the model.
    """
    rope = LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.4, "short_factor": LONGROPE["long_factor"]}
    folder = model_folder("phimoe", rope_parameters=rope, architectures=["PhiMoEForCausalLM"])
    prompts = random_prompts(prompt_tokens)
    expected = reference_tokens(folder, prompts, max_tokens)
    with running_engine(folder, max_model_len=max_model_len) as engine:
        assert tokens(run(engine, prompts, replace(GREEDY, max_tokens=max_tokens))) == expected


@every_level
def test_families_on_each_level(model_folder: ModelFolder, level: str) -> None:
    """Each level runs one family; `test_families` runs the best."""
    check(model_folder(OWN_WAYS[AVAILABLE.index(level) % len(OWN_WAYS)]), cpu_kernels=level)


@pytest.mark.parametrize(
    "family",
    [
        *OWN_WAYS, "afmoe", "axk2", "beam", "cohere-moe", "dbrx", "flint", "glm-moe", "jetmoe", "kolibri", "laguna",
        "longcat", "granite-moe-shared", "minimax-m2",
    ],
)  # fmt: skip
def test_tensor_parallel(model_folder: ModelFolder, family: str) -> None:
    """Ranks are threads; in `test_mxfp4`, they are processes."""
    check(model_folder(family), executor=TensorExecutor(), tensor_parallel_size=2, cpu_threads=1)


def in_mxfp4(folder: Path, plain: Path, packed: Path) -> None:
    """Writes two checkpoints of gpt-oss: `packed` with experts in MXFP4, and `plain` with the decoded values.

    In MXFP4, 32 values of e2m1 (4 bits) share a power of two.
    """
    shutil.copytree(folder, plain)
    shutil.copytree(folder, packed)
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat((values, -values))
    written, quantized = load_file(plain / "model.safetensors"), {}
    for name, weight in written.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            quantized[name] = weight
            continue
        experts, inputs, outputs = weight.shape
        codes = torch.randint(16, (experts, outputs, inputs // 32, 32))
        scales = torch.randint(120, 124, (experts, outputs, inputs // 32))
        quantized[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        quantized[f"{name}_scales"] = scales.to(torch.uint8)
        exact = values[codes] * 2.0 ** (scales - 127)[..., None]
        written[name] = exact.view(experts, outputs, inputs).transpose(1, 2).contiguous()
    save_file(written, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(quantized, packed / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((packed / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (packed / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cpu_kernels": "torch", "quantization": "mxfp4"},
        {"model_impl": "transformers"},
        pytest.param({"tensor_parallel_size": 2, "cpu_threads": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_mxfp4(model_folder: ModelFolder, tmp_path: Path, options: dict[str, Any]) -> None:
    """Compares experts in 4 bits with the decoded values."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    # Three blocks, two of which are on one of two ranks.
    in_mxfp4(model_folder("gpt-oss", intermediate_size=96), plain, packed)
    with running_engine(packed, **options) as engine:
        found = tokens(run(engine, PROMPTS, SAMPLING))
    check_greedy(plain, PROMPTS, found, SAMPLING.max_tokens or 0)


def test_a_rotation_among_the_fields_of_attention(model_folder: ModelFolder) -> None:
    """DBRX was published with its base there."""
    config = json.loads((model_folder("dbrx") / "config.json").read_text())
    assert config_for(config).rope_parameters["rope_theta"] == 20000.0
    config["attn_config"]["rope_theta"] = 30000.0
    del config["rope_parameters"]
    assert config_for(config).rope_parameters["rope_theta"] == 30000.0


def test_what_published_checkpoints_of_ax_k1_have(model_folder: ModelFolder, tmp_path: Path) -> None:
    """They have no bias for the choice of experts, and a norm for each dense layer, which is not used."""
    folder = shutil.copytree(model_folder("axk1"), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in written.items() if not name.endswith("e_score_correction_bias")}
    assert len(kept) < len(written)
    more = {"model.layers.0.post_mlp_layernorm.weight": torch.ones(64)}
    assert not more.keys() & kept.keys()
    save_file(kept | more, folder / "model.safetensors", metadata={"format": "pt"})
    check(folder)


NAMES: dict[str, dict[str, str]] = {
    "axk2": {".W_down.": ".mlp.fc1.", ".W_up.": ".mlp.fc2.", ".q_b_proj.": ".q_gate_proj."},
    "flint": {".softmax_offset": ".sinks"},
    "kolibri": {
        ".post_attn_norm.": ".post_self_attn_layernorm.", ".post_ffn_norm.": ".post_mlp_layernorm.",
        ".moe.router.expert_bias": ".mlp.gate.e_score_correction_bias",
    },
}  # fmt: skip


@pytest.mark.parametrize("family", NAMES)
def test_names_in_transformers(model_folder: ModelFolder, tmp_path: Path, family: str) -> None:
    """Its files have the names of published ones, which differ from its own."""
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    for published, name in NAMES[family].items():
        assert any(published in each for each in written)
        written = {each.replace(published, name): tensor for each, tensor in written.items()}
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    check(folder)


def test_kolibri_1_without_windows(model_folder: ModelFolder) -> None:
    """Layers rotate only if the configuration has no window for others either, which Transformers cannot run."""
    folder = model_folder("kolibri", layer_types=["full_attention"] * 5)
    check(folder)
    raw = json.loads((folder / "config.json").read_text())
    assert config_for(raw).no_rope_layers == set(range(5))
    assert not config_for(raw | {"sliding_window": None}).no_rope_layers


def test_ax_k2_without_groups_of_experts(model_folder: ModelFolder) -> None:
    check(model_folder("axk2", n_group=None, topk_group=None))  # as A.X K2 Light


def test_which_layers_of_ax_k2_have_experts(model_folder: ModelFolder) -> None:
    raw = json.loads((model_folder("axk2") / "config.json").read_text())
    raw |= {"num_hidden_layers": 6, "mlp_layer_types": None, "layer_types": None, "moe_layer_freq": 2}
    kinds = ["dense" if moe is None else "sparse" for moe in config_for(raw).moe]
    assert kinds == AXK2Config(**raw).mlp_layer_types == ["dense", "dense", "sparse", "dense", "sparse", "dense"]


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("glm-moe", "layers.3"),
        ("deepseek-v3.2", "layers.3"),
        ("ernie-moe", "mtp_block.0"),
        ("exaone-moe", "mtp.layers.0"),
    ],
)
def test_layers_that_guess_ahead_are_not_loaded(
    model_folder: ModelFolder, tmp_path: Path, family: str, layer: str
) -> None:
    """Checkpoints of GLM, DeepSeek, Ernie and EXAONE have such a layer after the model's own."""
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    more = {f"model.{layer}.eh_proj.weight": torch.ones(64, 128), f"model.{layer}.mlp.gate.weight": torch.ones(8, 64)}
    save_file(written | more, folder / "model.safetensors", metadata={"format": "pt"})
    with running_engine(folder) as engine:
        found = tokens(run(engine, PROMPTS, SAMPLING))
    check_greedy(model_folder(family), PROMPTS, found, SAMPLING.max_tokens or 0)


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("llama4", "Llama4ForConditionalGeneration"),
        ("kimi-k2", "KimiK25ForConditionalGeneration"),
        ("minimax-m3", "MiniMaxM3SparseForConditionalGeneration"),
        ("mistral", "Mistral3ForConditionalGeneration"),
    ],
)
def test_the_text_model_of_one_that_sees_images(
    model_folder: ModelFolder, tmp_path: Path, family: str, architecture: str
) -> None:
    """The text model's configuration is nested in another one, and its tensor names have a prefix."""
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    vision = {"vision_tower.norm.weight": torch.ones(8), "multi_modal_projector.linear_1.weight": torch.ones(8)}
    renamed = {f"language_model.{name}": tensor for name, tensor in written.items()}
    save_file(renamed | vision, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    config = {"architectures": [architecture], "text_config": text, "dtype": "float32"}
    config["vision_config"] = {"num_hidden_layers": 1}
    types = {"kimi-k2": "kimi_k25", "minimax-m3": "minimax_m3_vl", "mistral": "mistral3"}
    config["model_type"] = types.get(family, family)
    (folder / "config.json").write_text(json.dumps(config))
    with running_engine(folder, limit_mm_per_prompt="image=0,video=0") as engine:
        found = tokens(run(engine, PROMPTS, SAMPLING))
    check_greedy(model_folder(family), PROMPTS, found, SAMPLING.max_tokens or 0)


def test_the_text_model_of_another_kind_is_not_taken_for_it() -> None:
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": {"model_type": "persimmon"},
    }  # fmt: skip
    assert not is_ours(config)


@pytest.mark.parametrize("name", ["input_linear", "output_linear"])
def test_matrices_of_attentions_experts_have_their_shape(model_folder: ModelFolder, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(model_folder("jetmoe"), tmp_path / "model")
    written, tensor = load_file(folder / "model.safetensors"), f"model.layers.1.self_attention.experts.{name}.weight"
    written[tensor] = written[tensor][:4].contiguous()
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    words = rf"{name}.weight: shape \[4, .* does not fit 5 experts and 2 heads of 16 values"
    with pytest.raises(StartupError, match=words), running_engine(folder):
        pass


def test_more_ranks_than_heads_with_experts(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="key-value heads of attention with experts"),
        running_engine(model_folder("jetmoe"), executor=TensorExecutor(), tensor_parallel_size=4, cpu_threads=1),
    ):
        pass


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("gpt-oss", lambda weight: weight[:3], r"shape \[3, .* does not fit 4 experts"),
        ("llama4", lambda weight: weight[..., :9], r"down_proj: .*\[9, 32\].*\[64, 32\]"),
        ("llama4", lambda weight: weight[0, 0, 0], r"shape \[\] .* does not fit 4 experts"),
        ("gpt-oss", lambda weight: weight[:, None, None], r"down_proj: .*\[1, 1, 64, 64\]"),
    ],
)
def test_tensors_of_all_experts_have_their_shape(
    model_folder: ModelFolder, tmp_path: Path, family: str, change: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    folder = shutil.copytree(model_folder(family), tmp_path / "model")
    written = load_file(folder / "model.safetensors")
    name = next(name for name in written if name.endswith("experts.down_proj"))
    written[name] = change(written[name]).contiguous()
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StartupError, match=words), running_engine(folder):
        pass
