"""Configurations as models are published with them, where they differ from what Transformers writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine_svc.config_formats.registry import read_model_config
from engine_svc.layers.module_names import names_in_checkpoints
from engine_svc.loader.model import build_model, load_model
from engine_svc.loader.own_dtype import read_config_to_load
from engine_svc.models.recurrent_config import Mamba2Config
from engine_svc.models.registry import config_for, text_part
from engine_svc.ops.plain import PlainOps
from engine_svc.parallel.group import ParallelGroups
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.float4 import Float4Layer
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.modelopt import ModelOpt
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError
from quire.options.model_form import ModelFormOptions
from tests.support.engine_options import engine_options

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160,
    "max_position_embeddings": 256,
}  # fmt: skip
_NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hybrid_override_pattern": "M*-",
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 160, "max_position_embeddings": 256, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
    "ssm_state_size": 12, "time_step_min": 0.001, "time_step_max": 0.1,
}  # fmt: skip


def written(folder: Path, config: dict[str, Any], **others: Any) -> Path:
    """The folder with config.json and other JSON files."""
    for name, content in {"config": config, **others}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_dtype_that_the_configuration_leaves_out_is_that_of_most_weights(tmp_path: Path) -> None:
    """So it is in gpt-oss. Norms in float32, quantized weights and scales do not count."""
    tensors = {
        "model.embed_tokens.weight": torch.zeros(160, 64, dtype=torch.bfloat16),
        "model.norm.weight": torch.ones(64), "mlp.down_proj.weight": torch.zeros(500, 64).to(torch.float8_e4m3fn),
        "mlp.down_proj.weight_scale_inv": torch.ones(500, 64),
    }  # fmt: skip
    save_file(tensors, written(tmp_path, _LLAMA) / "model.safetensors")
    assert read_config_to_load(tmp_path, ModelFormOptions())["dtype"] == "bfloat16"
    built = build_model(tmp_path, engine_options(cpu_kernels="torch"), ParallelGroups(), torch.device("cpu"))
    assert built.dtype == torch.bfloat16


@pytest.mark.parametrize("given", [
    {"dtype": "float16"}, {"torch_dtype": "float16"}, {"text_config": {"torch_dtype": "float16"}},
])  # fmt: skip
def test_a_dtype_that_the_configuration_names_is_kept(given: dict[str, Any], tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(64)}, written(tmp_path, _LLAMA | given) / "model.safetensors")
    assert read_config_to_load(tmp_path, ModelFormOptions()) == _LLAMA | given


def test_without_weights_in_safetensors_no_dtype_is_told(tmp_path: Path) -> None:
    assert read_config_to_load(written(tmp_path, _LLAMA), ModelFormOptions()) == _LLAMA


def check_that_16_bits_are_accepted(folder: Path) -> None:
    """Fails unless --kv-cache-dtype bfloat16 is accepted, so that the missing weights end the start."""
    options = engine_options(cpu_kernels="torch", kv_cache_dtype="bfloat16")
    with pytest.raises(StartupError, match="safetensors weights"):
        load_model(folder, options, ParallelGroups(), torch.device("cpu"))


def test_model_optimizers_file_asks_for_an_8_bit_cache_too(tmp_path: Path) -> None:
    said = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    written(tmp_path, _LLAMA, hf_quant_config={"producer": {"name": "modelopt"}, "quantization": said})
    settings = read_model_config(tmp_path, ModelFormOptions())["quantization_config"]
    assert settings["quant_method"] == "modelopt"
    assert settings.items() >= said.items()
    check_that_16_bits_are_accepted(tmp_path)


def test_settings_within_the_text_models_part_ask_for_an_8_bit_cache_too(tmp_path: Path) -> None:
    """Kimi K2.5 has its quantization settings there."""
    settings = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    written(tmp_path, _LLAMA | {"text_config": {"quantization_config": settings}})
    check_that_16_bits_are_accepted(tmp_path)


def test_mixtures_on_all_layers_need_no_size_of_dense_ones() -> None:
    """All published Qwen 3.5 models with experts leave it out."""
    text = {
        "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 160, "max_position_embeddings": 256, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "full_attention_interval": 4, "dtype": "bfloat16", "mlp_only_layers": [],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }  # fmt: skip
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text,
        "tie_word_embeddings": False,
    }  # fmt: skip
    found = config_for(text_part(config))
    assert [moe and (moe.num_experts, moe.expert_size, moe.shared_size) for moe in found.moe] == [(8, 32, 48)] * 4
    with pytest.raises(StartupError, match="intermediate_size is 0"):
        config_for({**text_part(config), "mlp_only_layers": [1]})


@pytest.mark.parametrize(("given", "limits"), [
    ({}, (0.0, math.inf)), ({"time_step_limit": [0.0, math.inf]}, (0.0, math.inf)),
    ({"time_step_limit": [0.01, 0.5]}, (0.01, 0.5)), ({"time_step_limit": None}, (0.0, math.inf)),
])  # fmt: skip
def test_nemotrons_time_steps_have_the_limits_of_their_own(given: dict[str, Any], limits: tuple[float, float]) -> None:
    """`time_step_min` is for initializing weights only."""
    layer = config_for(_NEMOTRON | given).recurrent[0]
    assert isinstance(layer, Mamba2Config)
    assert layer.time_limits == limits


@pytest.mark.parametrize(("last", "mixtures"), [(None, [1, 2, 3]), (-1, [1, 2, 3]), (2, [1, 2])])
def test_ernies_last_mixture_may_be_null(last: int | None, mixtures: list[int]) -> None:
    config = config_for(_LLAMA | {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "num_hidden_layers": 4, "moe_num_experts": 8, "moe_k": 2,
        "moe_intermediate_size": 32, "moe_layer_end_index": last, "head_dim": None,
    })  # fmt: skip
    assert [index for index, moe in enumerate(config.moe) if moe] == mixtures
    assert config.head_dim == 16


def test_tens_of_thousands_of_modules_are_named_one_by_one() -> None:
    """Nemotron 3 Super names 41,100, which took many minutes when each was looked at for each matrix."""
    experts = [
        f"backbone.layers.{layer}.mixer.experts.{expert}.{name}"
        for layer in range(40) for expert in range(512) for name in ("up_proj", "down_proj")
    ]  # fmt: skip
    named = {name: {"quant_algo": "NVFP4", "group_size": 16} for name in experts} | {
        "backbone.layers.3.mixer.in_proj": {"quant_algo": "FP8"},
    }  # fmt: skip
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    method = ModelOpt.of_checkpoint(settings, ModelForm(PlainOps(), torch.float32))
    assert len(method.named) == 2  # one list for each algorithm
    for layer in range(40):
        name = f"backbone.layers.{layer}.mixer"
        assert isinstance(method.layer(Place("experts", (f"{name}.experts.0.up_proj",))), Float4Layer)
        assert isinstance(
            method.layer(Place("linear", (f"{name}.in_proj",))), Float8Layer if layer == 3 else PlainLayer
        )
        assert isinstance(method.layer(Place("linear", (f"{name}.out_proj",))), PlainLayer)


def test_model_optimizer_names_weights_whose_inputs_keep_16_bits() -> None:
    """NVIDIA's Qwen 3.6 27B mixes them with E4M3, and names joined modules."""
    named = {
        "model.layers.0.mlp.gate_up_proj": {"quant_algo": "W4A16_NVFP4"},
        "model.layers.0.self_attn.qkv_proj": {"quant_algo": "FP8"},
    }  # fmt: skip
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    method = ModelOpt.of_checkpoint(settings, ModelForm(PlainOps(), torch.float32))
    gate, query = (
        Place("linear", names_in_checkpoints(path, part, {}))
        for path, part in (("layers.0.mlp.gate_up_proj", "gate"), ("layers.0.self_attn.qkv_proj", "q"))
    )
    assert isinstance(method.layer(gate), Float4Layer)
    assert isinstance(method.layer(query), Float8Layer)
