"""Families with multi-head latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.gguf.architecture import Architecture, grouped_experts
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.rotary import rope_parameters

_SIGMOID = 2  # llama.cpp's number for sigmoid scoring of experts
_KDA = {
    "ssm_conv1d_q": "self_attn.q_conv1d", "ssm_conv1d_k": "self_attn.k_conv1d", "ssm_conv1d_v": "self_attn.v_conv1d",
    "ssm_f_a": "self_attn.f_a_proj", "ssm_f_b": "self_attn.f_b_proj", "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj", "ssm_beta": "self_attn.b_proj", "ssm_norm": "self_attn.o_norm",
    "ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias",
}  # fmt: skip


def latent_attention(facts: Facts) -> dict[str, Any]:
    """The sizes of latent attention. The rotary embedding applies to a dedicated part of the key, all of it."""
    rotated = facts.need("rope.dimension_count")
    size = facts.find("attention.key_length_mla") or facts.need("attention.key_length")
    return {
        "q_lora_rank": facts.find("attention.q_lora_rank") or None,
        "kv_lora_rank": facts.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated, "qk_nope_head_dim": size - rotated,
        "v_head_dim": facts.find("attention.value_length_mla") or facts.need("attention.value_length"),
    }  # fmt: skip


def _deepseek(facts: Facts) -> dict[str, Any]:
    rope = rope_parameters(facts)
    rope.pop("partial_rotary_factor", None)
    if growth := facts.find("rope.scaling.yarn_log_multiplier", 0.0):  # a tenth of the value in config.json
        rope |= {"mscale": 10 * growth, "mscale_all_dim": 10 * growth}
    return {
        **latent_attention(facts), **grouped_experts(facts), **_indexer(facts), "rope_parameters": rope,
        "topk_method": "group_limited_greedy",
    }  # fmt: skip


def _indexer(facts: Facts) -> dict[str, Any]:
    """Sparse attention. Layers without an indexer share what an earlier one has chosen; files may have none at all."""
    most, layers = facts.find("attention.indexer.top_k"), facts.layers_with("indexer.proj.weight")
    if not most or not layers:
        return {}
    return {
        "index_topk": most, "index_n_heads": facts.need("attention.indexer.head_count"),
        "index_head_dim": facts.need("attention.indexer.key_length"),
        "indexer_types": ["full" if index in layers else "shared" for index in range(facts.num_layers)],
    }  # fmt: skip


def _kimi_linear(facts: Facts) -> dict[str, Any]:
    recurrent = facts.layers_with("ssm_norm.weight")
    return {
        **latent_attention(facts), **grouped_experts(facts), "norm_topk_prob": True,
        "linear_num_heads": facts.need("attention.head_count"), "linear_head_dim": facts.need("kda.head_dim"),
        "linear_conv_kernel_dim": facts.need("ssm.conv_kernel"),
        "layer_types": ["linear_attention" if index in recurrent else "full_attention"
                        for index in range(facts.num_layers)],
    }  # fmt: skip


# By llama.cpp's architecture names.
LATENT: Mapping[str, Architecture] = {
    "deepseek2 with sigmoids": Architecture(
        "DeepseekV3ForCausalLM", "deepseek_v3", _deepseek,
        when=lambda facts: facts.find("expert_gating_func", 0) == _SIGMOID
        or bool(facts.layers_with("exp_probs_b.bias")),
    ),
    "deepseek2": Architecture("DeepseekV2ForCausalLM", "deepseek_v2", _deepseek),
    "deepseek32": Architecture("DeepseekV32ForCausalLM", "deepseek_v32", _deepseek),
    "glm-dsa": Architecture("GlmMoeDsaForCausalLM", "glm_moe_dsa", _deepseek),
    "kimi-linear": Architecture("KimiLinearForCausalLM", "kimi_linear", _kimi_linear, _KDA),
}  # fmt: skip
