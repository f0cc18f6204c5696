"""The families of models that are read from GGUF: what differs from Llama in their configuration and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_svc.gguf.facts import Facts
from engine_svc.gguf.rotary import head_size, rope_parameters
from quire.errors import StartupError


@dataclass(frozen=True)
class Architecture:
    """One family."""

    huggingface: str  # what config.json calls it
    model_type: str
    fields: Callable[[Facts], dict[str, Any]] = lambda facts: {}  # of config.json, beside those that all have
    modules: Mapping[str, str] = field(default_factory=dict)  # in a layer, where they are called otherwise than usual
    neighbours: bool = False  # rows of queries and keys stand so that the two that rotate together are neighbours
    norm_offset: float = 0.0  # what norms' weights have here and lack in Hugging Face's layout


_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_FUSED = {"ffn_up": "mlp.gate_up_proj"}


def _mixtral(facts: Facts) -> dict[str, Any]:
    return {
        "num_local_experts": facts.need("expert_count"), "num_experts_per_tok": facts.need("expert_used_count"),
        "sliding_window": None,
    }  # fmt: skip


def _qwen_moe(facts: Facts) -> dict[str, Any]:
    count = facts.need("block_count")
    return {
        "num_experts": facts.need("expert_count"),
        "num_experts_per_tok": facts.need("expert_used_count"),
        "moe_intermediate_size": facts.need("expert_feed_forward_length"),
        "mlp_only_layers": [index for index in range(count) if not facts.has(f"blk.{index}.ffn_gate_inp.weight")],
        "decoder_sparse_step": 1,
    }


def _qwen2_moe(facts: Facts) -> dict[str, Any]:
    shared = facts.need("expert_shared_feed_forward_length")
    return _qwen_moe(facts) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _qwen3_moe(facts: Facts) -> dict[str, Any]:
    return _qwen_moe(facts) | {"norm_topk_prob": True}


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    """Its rotation does not round where frequencies begin to be stretched, which files do not say."""
    return {
        "num_local_experts": facts.need("expert_count"),
        "num_experts_per_tok": facts.need("expert_used_count"),
        "intermediate_size": facts.need("expert_feed_forward_length"),
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": _layer_types(facts, 2),
        "rope_parameters": rope_parameters(facts) | {"truncate": False},
    }


def _layer_types(facts: Facts, period: int) -> list[str]:
    """By the file's pattern, or else with every `period`th layer seeing everything."""
    count, pattern = facts.need("block_count"), facts.pattern("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = (pattern * count)[:count]
    else:
        slides = [bool((index + 1) % (pattern or period)) for index in range(count)]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _gemma2(facts: Facts) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": facts.find("attn_logit_softcapping"),
        "final_logit_softcapping": facts.find("final_logit_softcapping"),
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": _layer_types(facts, 2),
        "query_pre_attn_scalar": _query_scalar(facts, 46),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": float(facts.find("rope.freq_base_swa", 10000.0))}
    return {
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": _layer_types(facts, 6),
        "final_logit_softcapping": facts.find("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(facts, 62),
        "rope_parameters": {"full_attention": rope_parameters(facts), "sliding_attention": local},
    }


def _query_scalar(facts: Facts, layers: int) -> float:
    """Files do not have it: it is a head's size, but in the largest model of a generation, known by its layers."""
    if facts.need("block_count") == layers:
        return float(facts.need("embedding_length") / facts.need("attention.head_count"))
    return float(head_size(facts))


def _window(facts: Facts) -> dict[str, Any]:
    return {"sliding_window": facts.find("attention.sliding_window") or None}


def _phi3(facts: Facts) -> dict[str, Any]:
    original = facts.find("rope.scaling.original_context_length")
    return _window(facts) | ({"original_max_position_embeddings": original} if original else {})


def _granite(facts: Facts) -> dict[str, Any]:
    return {
        "attention_multiplier": facts.find("attention.scale", head_size(facts) ** -0.5),
        "embedding_multiplier": facts.find("embedding_scale", 1.0),
        "residual_multiplier": facts.find("residual_scale", 1.0),
        "logits_scaling": facts.find("logit_scale", 1.0),
    }


def _cohere(facts: Facts) -> dict[str, Any]:
    return {
        "logit_scale": facts.need("logit_scale"),
        "layer_norm_eps": facts.need("attention.layer_norm_epsilon"),
        "use_qk_norm": facts.has("blk.0.attn_q_norm.weight"),
    }


def _cohere2(facts: Facts) -> dict[str, Any]:
    windows = {"sliding_window": facts.need("attention.sliding_window"), "layer_types": _layer_types(facts, 4)}
    return _cohere(facts) | windows


# By llama.cpp's names.
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "llama", neighbours=True),
    "llama with experts": Architecture("MixtralForCausalLM", "mixtral", _mixtral, neighbours=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", "qwen2_moe", _qwen2_moe),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", "gpt_oss", _gpt_oss, {"post_attention_norm": "post_attention_layernorm"}
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", _gemma2, _SANDWICH, norm_offset=1.0),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3, _SANDWICH, norm_offset=1.0),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _phi3, _FUSED),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2", modules=_SANDWICH),
    "granite": Architecture("GraniteForCausalLM", "granite", _granite, neighbours=True),
    "command-r": Architecture("CohereForCausalLM", "cohere", _cohere),
    "cohere2": Architecture("Cohere2ForCausalLM", "cohere2", _cohere2),
    "glm4": Architecture(
        "Glm4ForCausalLM", "glm4",
        modules=_FUSED | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", neighbours=True),
    "seed_oss": Architecture(
        "SeedOssForCausalLM", "seed_oss", lambda facts: {"attention_out_bias": facts.has("blk.0.attn_output.bias")},
        {"post_attention_norm": "post_attention_layernorm"},
    ),
}  # fmt: skip


def architecture_of(facts: Facts) -> Architecture:
    """
    Raises:
        StartupError: the family is not read from GGUF.
    """
    name = facts.architecture
    with_experts = f"{name} with experts"
    if with_experts in ARCHITECTURES and facts.find("expert_count", 0):
        return ARCHITECTURES[with_experts]
    if name not in ARCHITECTURES or " " in name:
        known = ", ".join(each for each in ARCHITECTURES if " " not in each)
        raise StartupError(
            f"{facts.model.files[0]}: the architecture {name!r} is not read from GGUF; read are {known}. Take the "
            "model's safetensors."
        )
    return ARCHITECTURES[name]
