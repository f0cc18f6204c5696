"""Configurations of tiny models, of any type that Transformers has as a causal language model."""

from __future__ import annotations

import dataclasses
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_svc.models.registry import ARCHITECTURES, AUDIO_MODELS, IMAGE_MODELS
from tests.support.tiny_models import VOCAB_SIZE

# model_type → name of the class.
MODEL_TYPES: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

# Architectures that Quire has its own code for, at least for the language model inside.
NATIVE = frozenset(ARCHITECTURES) | IMAGE_MODELS | AUDIO_MODELS

# Set for all configurations that have the field.
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_layers": 2,
    "num_attention_heads": 4, "num_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256, "sliding_window": 16, "local_attention": 32, "window_size": 16,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2,
    "initializer_range": 0.3, "partial_rotary_factor": 1.0,
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_inner": 64,
    "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "embedding_size": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "moe_topk": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 64,
    "word_embed_proj_dim": 64, "ffn_dim": 64, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
    "router_hidden_size": 16, "dense_intermediate_size": 64, "shared_intermediate_size": 64, "rotary_dim": 16,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
_BY_KIND = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}
_MIXED = ["sliding_attention", "full_attention"] * 2
# Text model types of multimodal models, if they are not the model's own type followed by `_text`.
_TEXT_TYPES = {
    "fuyu": "persimmon",
    "got_ocr2": "qwen2", "moss_transcribe_diarize": "qwen3",
}  # fmt: skip
# Further fields that a type needs; None removes a field.
_SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": _BY_KIND},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    },
    "gemma3n_text": {"layer_types": _MIXED, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"layer_types": _MIXED},
    "gemma4_unified_text": {"layer_types": _MIXED},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hrm_text": {"initializer_range": 0.05},  # repeats its layers: larger weights would amplify rounding errors
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "zamba": {"num_hidden_layers": None},
    "zamba2": {"num_hidden_layers": None},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def tiny_configuration(model_type: str) -> transformers.PretrainedConfig:
    """A configuration with weights of only a few megabytes, and all kinds of layers that the type has by default."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    fields = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    wanted = dict(_SHAPE)
    if "layer_types" in fields:
        wanted["num_hidden_layers"] = 4
    if "kv_lora_rank" in fields:
        wanted |= _LATENT
    if "is_decoder" in fields:
        wanted["is_decoder"] = True
    text_type = _TEXT_TYPES.get(model_type, f"{model_type}_text")
    if "text_config" in config_class.sub_configs and text_type in MODEL_TYPES and model_type != "dots3_note":
        wanted["text_config"] = tiny_configuration(text_type).to_dict()
        wanted["vision_config"] = wanted["audio_config"] = _VISION
        fields |= set(config_class.sub_configs)
    special = _SPECIAL.get(model_type, {})
    chosen = {name: value for name, value in wanted.items() if name in fields} | special
    config = config_class(**{name: value for name, value in chosen.items() if value is not None})
    config.architectures = [MODEL_TYPES[model_type]]
    return config
