"""A model's configuration, whichever file holds it and whatever the user overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_svc.config_formats.mistral import from_mistral
from engine_svc.config_formats.registry import find_model_config, read_model_config
from quire.errors import StartupError
from quire.options.model_form import ModelFormOptions

PARAMS = {
    "dim": 64, "n_layers": 3, "head_dim": 16, "hidden_dim": 96, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
    "vocab_size": 160, "rope_theta": 1e6,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    return tmp_path


def read(folder: Path, **options: Any) -> dict[str, Any]:
    return read_model_config(folder, ModelFormOptions(**options))


def test_auto_takes_what_there_is_and_hugging_face_first(folder: Path) -> None:
    assert read(folder)["architectures"] == ["MistralForCausalLM"]
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert read(folder)["architectures"] == ["LlamaForCausalLM"]
    assert read(folder, config_format="mistral")["architectures"] == ["MistralForCausalLM"]


def test_none(tmp_path: Path) -> None:
    assert find_model_config(tmp_path, ModelFormOptions()) == {}
    with pytest.raises(StartupError, match=r"not a model folder: it has no config\.json nor params\.json"):
        read(tmp_path)
    with pytest.raises(StartupError, match=r"it has no params\.json\."):
        read(tmp_path, config_format="mistral")


def test_another_folders(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "config.json").write_text('{"vocab_size": 7}')
    assert read(folder, hf_config_path=str(other), hf_overrides={"a": 1}) == {"vocab_size": 7, "a": 1}
    with pytest.raises(StartupError, match="/nowhere"):
        read(folder, hf_config_path="/nowhere")


def test_infinity_as_transformers_writes_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, {"__float__": "Infinity"}]}')
    assert read(tmp_path) == {"time_step_limit": [0.0, float("inf")]}


def test_what_params_say(folder: Path) -> None:
    assert read(folder) == {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 3,
        "head_dim": 16, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "vocab_size": 160, "rope_theta": 1e6, "hidden_act": "silu", "sliding_window": None,
        "tie_word_embeddings": False, "max_position_embeddings": 128_000, "dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"sliding_window": 16}, {"sliding_window": 16}),
        (
            {"sliding_window": [None, 8]},
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        ),
        (
            {"yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "beta": 32.0, "alpha": 1.0}},
            {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1e6, "mscale_all_dim": 1.0, "factor": 4.0,
                    "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
                }
            },
        ),
        (
            {"llama_4_scaling": {"original_max_position_embeddings": 64, "beta": 0.1}},
            {
                "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "rope_parameters": {
                    "rope_type": "default", "rope_theta": 1e6, "original_max_position_embeddings": 64,
                    "llama_4_scaling_beta": 0.1,
                },
            },
        ),
        (
            {"moe": {"num_experts": 8, "num_experts_per_tok": 2}},
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        (
            {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}},
            {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
        ),
        (
            {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "NO_SCALES"}},
            {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
        ),
        (
            {
                "quantization": {
                    "quant_method": "compressed_tensors", "format": "x", "ignore": ["output", "re:vision.*"],
                    "config_groups": {"a": {"targets": ["Linear", "layers.1.attention.wo"], "weights": {}}},
                }
            },
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors", "format": "x", "ignore": ["lm_head", "re:vision.*"],
                    "config_groups": {"a": {"targets": ["Linear", "model.layers.1.self_attn.o_proj"], "weights": {}}},
                }
            },
        ),
    ],
)  # fmt: skip
def test_what_else_params_say(more: dict[str, Any], expected: dict[str, Any]) -> None:
    found = from_mistral(PARAMS | more)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"q_lora_rank": 8}, "lacks 'moe'"),
        ({"q_lora_rank": 8, "moe": {"route_every_n": 2}}, "route_every_n"),
        ({"use_biases": True}, "biases are not supported in this format"),
        ({"llama_4_scaling": {"beta": 0.1}}, "lacks 'original_max_position_embeddings'"),
        (
            {"llama_4_scaling": {"beta": 0.1}, "moe": {"num_experts": 2, "num_experts_per_tok": 1}},
            "both moe and llama_4_scaling",
        ),
        ({"moe": {"num_experts": 2, "num_experts_per_tok": 1, "num_shared_experts": 1}}, "num_shared_experts"),
        ({"sliding_window": [4, 8]}, "2 sizes"),
        ({"quantization": {"qformat_weight": "strange"}}, "strange"),
    ],
)
def test_what_params_may_not_say(more: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        from_mistral(PARAMS | more)


ROPE = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({"rope_theta": 5e5}, {"rope_scaling": ROPE}, ROPE | {"rope_theta": 5e5}),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}},
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        ),
        ({}, {"rope_theta": 7.0}, {"rope_type": "default", "rope_theta": 7.0}),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
            {"rope_theta": 7.0},
            {"rope_type": "linear", "factor": 3.0, "rope_theta": 7.0},
        ),
        ({"rope_theta": 5.0}, {"rope_scaling": ROPE, "rope_theta": 7.0}, ROPE | {"rope_theta": 7.0}),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5}},
            {"rope_scaling": ROPE},
            ROPE | {"rope_theta": 5.0, "partial_rotary_factor": 0.5},
        ),
    ],
)
def test_rotary_settings(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1, **config}))
    assert read(tmp_path, **options) == {"a": 1, "rope_parameters": expected}


def test_rotary_settings_of_layers(tmp_path: Path) -> None:
    settings = {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps({"rope_parameters": settings}))
    assert read(tmp_path)["rope_parameters"] == settings
    with pytest.raises(StartupError, match="--hf-overrides"):
        read(tmp_path, rope_theta=3.0)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"rope_theta": 7.0}, {"rope_type": "default", "rope_theta": 7.0}),
        ({"rope_scaling": ROPE}, ROPE | {"rope_theta": 5.0}),
        ({"rope_parameters": ROPE}, ROPE),
    ],
)
def test_rotary_settings_by_either_of_their_names(
    tmp_path: Path, overrides: dict[str, Any], expected: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text('{"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}')
    assert read(tmp_path, hf_overrides=overrides) == {"rope_parameters": expected}


def test_scaling_that_is_taken_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_parameters": ROPE | {"rope_theta": 5.0}}))
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    assert read(tmp_path, hf_overrides={"rope_scaling": None}) == plain


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rope_theta": 7.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
        ({"hf_overrides": {"rope_theta": 7.0}}, {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
        ({"hf_overrides": {"sliding_window": 8}}, {"sliding_window": 8}),
        ({"hf_overrides": {"text_config": {"sliding_window": 8}}}, {"sliding_window": 8}),
        ({"hf_overrides": {"model_type": "other"}}, {}),
    ],
)
def test_what_is_changed_of_a_text_model_among_others(
    tmp_path: Path, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    text = {
        "model_type": "mistral", "sliding_window": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": text}))
    assert read(tmp_path, **options)["text_config"] == text | expected


@pytest.mark.parametrize("architectures", [7, "InternVLChatModel", {"InternVLChatModel": 1}, [7]])
def test_architectures_that_are_no_names(tmp_path: Path, architectures: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    with pytest.raises(StartupError, match=r"architectures is .*; expected a list of names"):
        read(tmp_path)
