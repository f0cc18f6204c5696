"""Families with mixtures of experts in which all layers attend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.gguf.architecture import (
    NORM_BETWEEN,
    Architecture,
    experts,
    grouped_experts,
    layer_types,
    multipliers,
    window,
)
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.rotary import head_size, rope_parameters


def _mixtral(facts: Facts) -> dict[str, Any]:
    return {
        "num_local_experts": facts.need("expert_count"), "num_experts_per_tok": facts.need("expert_used_count"),
        "sliding_window": None,
    }  # fmt: skip


def _has_experts(facts: Facts) -> bool:
    return bool(facts.find("expert_count", 0))


def qwen_experts(facts: Facts) -> dict[str, Any]:
    """The expert fields of all Qwen generations."""
    sparse = facts.layers_with("ffn_gate_inp.weight")
    return experts(facts) | {
        "mlp_only_layers": [index for index in range(facts.num_layers) if index not in sparse],
        "decoder_sparse_step": 1,
    }


def _qwen2_moe(facts: Facts) -> dict[str, Any]:
    shared = facts.need("expert_shared_feed_forward_length")
    return qwen_experts(facts) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _qwen3_moe(facts: Facts) -> dict[str, Any]:
    return qwen_experts(facts) | {"norm_topk_prob": True}


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    """Files lack `truncate`: gpt-oss does not round where YaRN's ramp of frequencies begins and ends."""
    return {
        "num_local_experts": facts.need("expert_count"),
        "num_experts_per_tok": facts.need("expert_used_count"),
        "intermediate_size": facts.need("expert_feed_forward_length"),
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": layer_types(facts, 2),
        "rope_parameters": rope_parameters(facts) | {"truncate": False},
    }


def _phimoe(facts: Facts) -> dict[str, Any]:
    """Files lack router_jitter_noise: this is the value that the released model was trained with."""
    return experts(facts) | window(facts) | {"lm_head_bias": facts.has("output.bias"), "router_jitter_noise": 0.01}


def _olmoe(facts: Facts) -> dict[str, Any]:
    return experts(facts) | {"norm_topk_prob": False, "clip_qkv": facts.find("attention.clamp_kqv")}


def _dots(facts: Facts) -> dict[str, Any]:
    return grouped_experts(facts) | window(facts) | {"layer_types": ["full_attention"] * facts.num_layers}


def _ernie_moe(facts: Facts) -> dict[str, Any]:
    """The total size of the shared experts is taken from their tensor, as the metadata has another value."""
    found, size = experts(facts), facts.need("expert_feed_forward_length")
    shared = facts.rows("ffn_gate_shexp.weight")
    return {
        "use_bias": facts.has("blk.0.attn_q.bias"), "moe_num_experts": found["num_experts"],
        "moe_k": found["num_experts_per_tok"], "moe_intermediate_size": size,
        "moe_num_shared_experts": shared // size, **_ernie_layers(facts),
    }  # fmt: skip


def _ernie_layers(facts: Facts) -> dict[str, Any]:
    sparse = facts.layers_with("ffn_gate_inp.weight")
    return {
        "moe_layer_interval": facts.find("interleave_moe_layer_step", 1),
        "moe_layer_start_index": min(sparse, default=facts.num_layers), "moe_layer_end_index": max(sparse, default=-1),
    }  # fmt: skip


def _glm_moe(facts: Facts) -> dict[str, Any]:
    return grouped_experts(facts) | {"use_qk_norm": facts.has("blk.0.attn_q_norm.weight")}


def _granite_moe(facts: Facts) -> dict[str, Any]:
    shared = facts.find("expert_shared_feed_forward_length", 0)
    return experts(facts) | multipliers(facts, head_size(facts) ** -0.5) | {"shared_intermediate_size": shared}


def _hunyuan_moe(facts: Facts) -> dict[str, Any]:
    found = experts(facts)
    return found | {
        "moe_topk": found["num_experts_per_tok"], "num_shared_expert": facts.find("expert_shared_count", 1),
        "intermediate_size": facts.need("feed_forward_length"),
    }  # fmt: skip


def _llama4(facts: Facts) -> dict[str, Any]:
    """Some fields are the same for all models and missing in files: chunks, scaling of scores, layers with rotation.

    Only the larger of the two models, known by its number of experts, lacks head norms, whose weights are all 1.
    """
    return experts(facts) | {
        "intermediate_size": facts.need("expert_feed_forward_length"),
        "intermediate_size_mlp": facts.need("feed_forward_length"),
        "moe_layers": facts.layers_with("ffn_gate_inp.weight"),
        "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True,
        "no_rope_layer_interval": 4, "use_qk_norm": facts.need("expert_count") != 128,
    }  # fmt: skip


def _minimax_m2(facts: Facts) -> dict[str, Any]:
    return experts(facts) | {"intermediate_size": facts.need("expert_feed_forward_length")}


# By llama.cpp's architecture names.
MIXTURES: Mapping[str, Architecture] = {
    "llama with experts": Architecture(
        "MixtralForCausalLM", "mixtral", _mixtral, neighbours=True, when=_has_experts
    ),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", "qwen2_moe", _qwen2_moe),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe),
    "gpt-oss": Architecture("GptOssForCausalLM", "gpt_oss", _gpt_oss, NORM_BETWEEN),
    "phimoe": Architecture("PhimoeForCausalLM", "phimoe", _phimoe),
    "olmoe": Architecture("OlmoeForCausalLM", "olmoe", _olmoe),
    "dots1": Architecture("Dots1ForCausalLM", "dots1", _dots),
    "ernie4_5-moe": Architecture("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _ernie_moe),
    "glm4moe": Architecture("Glm4MoeForCausalLM", "glm4_moe", _glm_moe, NORM_BETWEEN),
    "granitemoe": Architecture("GraniteMoeSharedForCausalLM", "granitemoeshared", _granite_moe, neighbours=True),
    "hunyuan-moe": Architecture("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", _hunyuan_moe),
    "llama4": Architecture("Llama4ForCausalLM", "llama4_text", _llama4),
    "minimax-m2": Architecture("MiniMaxM2ForCausalLM", "minimax_m2", _minimax_m2),
}  # fmt: skip
