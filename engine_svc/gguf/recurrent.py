"""Families with recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_svc.gguf.architecture import NORM_BETWEEN, Architecture, experts, grouped_experts, multipliers
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.mixtures import qwen_experts
from engine_svc.gguf.rotary import head_size
from quire.errors import StartupError

# Families in which layers with experts, attention or states all have the same module name.
_MIXERS = {
    "attn_norm": "norm", "attn_q": "mixer.q_proj", "attn_k": "mixer.k_proj", "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj", "ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate", "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.{}.up_proj", "ffn_down_exps": "mixer.experts.{}.down_proj",
    "ffn_up_shexp": "mixer.shared_expert.up_proj", "ffn_down_shexp": "mixer.shared_expert.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj", "ffn_latent_up": "mixer.fc2_latent_proj",
}  # fmt: skip
_SHORT_CONVOLUTION = {
    "shortconv.in_proj": "mixer.in_proj", "shortconv.conv": "conv.conv", "shortconv.out_proj": "mixer.out_proj",
    "token_embd_norm": "norm",  # despite its name, the norm after the last layer
}  # fmt: skip
_MAMBA = {"ssm_dt.weight": "mixer.dt_proj.weight", "ssm_dt.bias": "mixer.dt_proj.bias"}
_DELTA_NET = NORM_BETWEEN | {
    "attn_qkv": "mixer.in_proj_qkv", "attn_gate": "mixer.in_proj_z", "ssm_alpha": "mixer.in_proj_a",
    "ssm_beta": "mixer.in_proj_b",
}  # fmt: skip


def _types(facts: Facts, attending: Sequence[int], other: str) -> list[str]:
    return ["full_attention" if index in attending else other for index in range(facts.num_layers)]


def _attending(facts: Facts) -> list[int]:
    return sorted({*facts.layers_with("attn_k.weight"), *facts.layers_with("attn_k_norm.weight")})


def _lfm2(facts: Facts) -> dict[str, Any]:
    return {
        "layer_types": _types(facts, _attending(facts), "conv"), "conv_L_cache": facts.need("shortconv.l_cache"),
        "conv_bias": bool(facts.layers_with("shortconv.conv.bias")), "block_auto_adjust_ff_dim": False,
    }  # fmt: skip


def _lfm2_moe(facts: Facts) -> dict[str, Any]:
    return _lfm2(facts) | experts(facts) | {
        "num_dense_layers": min(facts.layers_with("ffn_gate_inp.weight"), default=facts.num_layers),
        "use_expert_bias": bool(facts.layers_with("exp_probs_b.bias")), "norm_topk_prob": True,
        "routed_scaling_factor": facts.find("expert_weights_scale", 1.0) or 1.0,
    }  # fmt: skip


def _mamba(facts: Facts) -> dict[str, Any]:
    return {
        "intermediate_size": facts.need("ssm.inner_size"), "state_size": facts.need("ssm.state_size"),
        "conv_kernel": facts.need("ssm.conv_kernel"), "time_step_rank": facts.need("ssm.time_step_rank"),
        "use_bias": facts.has("blk.0.ssm_in.bias"), "use_conv_bias": facts.has("blk.0.ssm_conv1d.bias"),
    }  # fmt: skip


def _heads(facts: Facts) -> tuple[int, int]:
    """The number of heads of a Mamba 2, and their size."""
    count = facts.need("ssm.time_step_rank")
    return count, facts.need("ssm.inner_size") // count


def _mamba2(facts: Facts) -> dict[str, Any]:
    count, size = _heads(facts)
    groups = facts.need("ssm.group_count")
    return _mamba(facts) | {"num_heads": count, "head_dim": size, "n_groups": groups}


def _mamba2_beside(facts: Facts) -> dict[str, Any]:
    """The fields of a Mamba 2 under the names of Bamba and later families."""
    count, size = _heads(facts)
    return {
        "mamba_n_heads": count, "mamba_d_head": size, "mamba_d_ssm": count * size,
        "mamba_expand": count * size / facts.need("embedding_length"),
        "mamba_n_groups": facts.need("ssm.group_count"), "mamba_d_state": facts.need("ssm.state_size"),
        "mamba_d_conv": facts.need("ssm.conv_kernel"), "mamba_proj_bias": bool(facts.layers_with("ssm_in.bias")),
        "mamba_conv_bias": bool(facts.layers_with("ssm_conv1d.bias")),
    }  # fmt: skip


def _jamba(facts: Facts) -> dict[str, Any]:
    size = facts.need("embedding_length")
    return {
        "num_experts": facts.find("expert_count", 0) or 1, "num_experts_per_tok": facts.find("expert_used_count", 1),
        "mamba_expand": facts.need("ssm.inner_size") // size, "mamba_d_state": facts.need("ssm.state_size"),
        "mamba_d_conv": facts.need("ssm.conv_kernel"), "mamba_dt_rank": facts.need("ssm.time_step_rank"),
        "mamba_conv_bias": bool(facts.layers_with("ssm_conv1d.bias")),
        "mamba_proj_bias": bool(facts.layers_with("ssm_in.bias")),
        **_periodic(facts, "attn", _attending(facts)),
        **_periodic(facts, "expert", facts.layers_with("ffn_gate_inp.weight")),
    }  # fmt: skip


def _periodic(facts: Facts, name: str, found: Sequence[int]) -> dict[str, int]:
    """Describes layers by their period and offset.

    Raises:
        StartupError: the layers are not at even distances.
    """
    period = found[1] - found[0] if len(found) > 1 else facts.num_layers
    first = found[0] if found else period  # no such layers
    if list(found) != [index for index in range(facts.num_layers) if index % period == first]:
        raise StartupError(f"{facts.model.files[0]}: layers {found} of a Jamba model; expected evenly spaced layers.")
    return {f"{name}_layer_period": period, f"{name}_layer_offset": first}


def _falcon_h1(facts: Facts) -> dict[str, Any]:
    """The converter has multiplied the model's multipliers into the weights.

    Files do not say whether the norm comes before or after the gates; this follows llama.cpp.
    """
    return _mamba2_beside(facts) | {
        "projectors_bias": bool(facts.layers_with("ssm_out.bias")), "mamba_norm_before_gate": False,
        "mamba_rms_norm": bool(facts.layers_with("ssm_norm.weight")),
    }  # fmt: skip


def _granite_hybrid(facts: Facts) -> dict[str, Any]:
    """Also for Bamba, which has no multipliers, but rotary embedding."""
    shared = facts.find("expert_shared_feed_forward_length", 0)
    common = {
        **_mamba2_beside(facts), **multipliers(facts, head_size(facts) ** -0.5),
        "layer_types": _types(facts, _attending(facts), "linear_attention"),
        "position_embedding_type": "rope" if facts.find("rope.scaling.finetuned", False) else "nope",
        "shared_intermediate_size": shared or facts.need("feed_forward_length"), "num_local_experts": 0,
    }  # fmt: skip
    if not facts.find("expert_count", 0):
        return common
    return common | experts(facts) | {"shared_intermediate_size": shared}


def _nemotron_h(facts: Facts) -> dict[str, Any]:
    kinds = ["mamba"] * facts.num_layers
    of = {"attn_q.weight": "attention", "attn_qkv.weight": "attention", "ffn_up.weight": "mlp",
          "ffn_gate_inp.weight": "moe"}  # fmt: skip
    for tensor, kind in of.items():
        for index in facts.layers_with(tensor):
            kinds[index] = kind
    count, size = _heads(facts)
    common = {
        "layers_block_type": kinds, "mamba_num_heads": count, "mamba_head_dim": size,
        "n_groups": facts.need("ssm.group_count"), "ssm_state_size": facts.need("ssm.state_size"),
        "conv_kernel": facts.need("ssm.conv_kernel"), "use_bias": bool(facts.layers_with("ssm_in.bias")),
        "use_conv_bias": bool(facts.layers_with("ssm_conv1d.bias")), "mlp_hidden_act": "relu2",
        "mlp_bias": any(facts.layers_with(f"{each}.bias") for each in ("ffn_up", "ffn_up_shexp")),
        # For layers without experts; the metadata has the experts' size.
        "intermediate_size": facts.rows("ffn_up.weight") or facts.find("feed_forward_length") or 0,
    }  # fmt: skip
    return common | (_nemotron_experts(facts) if "moe" in kinds else {})


def _nemotron_experts(facts: Facts) -> dict[str, Any]:
    found = grouped_experts(facts)
    del found["mlp_layer_types"]
    return found | {
        "moe_shared_expert_intermediate_size": facts.need("expert_shared_feed_forward_length"),
        "moe_latent_size": facts.find("moe_latent_size") or None,
    }


def _qwen3_next(facts: Facts) -> dict[str, Any]:
    recurrent = facts.layers_with("ssm_out.weight")
    values = facts.need("ssm.time_step_rank")
    common = {
        "layer_types": ["linear_attention" if index in recurrent else "full_attention"
                        for index in range(facts.num_layers)],
        "linear_num_key_heads": facts.need("ssm.group_count"), "linear_num_value_heads": values,
        "linear_key_head_dim": facts.need("ssm.state_size"),
        "linear_value_head_dim": facts.need("ssm.inner_size") // values,
        "linear_conv_kernel_dim": facts.need("ssm.conv_kernel"),
    }  # fmt: skip
    if not facts.find("expert_count", 0):
        return common
    shared = facts.need("expert_shared_feed_forward_length")
    return common | qwen_experts(facts) | {"norm_topk_prob": True, "shared_expert_intermediate_size": shared}


# By llama.cpp's architecture names.
RECURRENT: Mapping[str, Architecture] = {
    "lfm2": Architecture("Lfm2ForCausalLM", "lfm2", _lfm2, _SHORT_CONVOLUTION),
    "lfm2moe": Architecture("Lfm2MoeForCausalLM", "lfm2_moe", _lfm2_moe, _SHORT_CONVOLUTION),
    "mamba with norms": Architecture(
        "FalconMambaForCausalLM", "falcon_mamba", _mamba, _MIXERS | _MAMBA, attends=False,
        when=lambda facts: bool(facts.find("ssm.dt_b_c_rms", False)),
    ),
    "mamba": Architecture("MambaForCausalLM", "mamba", _mamba, _MIXERS | _MAMBA, attends=False),
    "mamba2": Architecture("Mamba2ForCausalLM", "mamba2", _mamba2, _MIXERS, attends=False),
    "jamba": Architecture("JambaForCausalLM", "jamba", _jamba, _MAMBA),
    "falcon-h1": Architecture("FalconH1ForCausalLM", "falcon_h1", _falcon_h1),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", _granite_hybrid, neighbours=True
    ),
    "nemotron_h": Architecture("NemotronHForCausalLM", "nemotron_h", _nemotron_h, _MIXERS),
    "nemotron_h_moe": Architecture("NemotronHForCausalLM", "nemotron_h", _nemotron_h, _MIXERS),
    "qwen3next with one projection": Architecture(  # written by the first converters
        "Qwen3NextForCausalLM", "qwen3_next", _qwen3_next,
        NORM_BETWEEN | {"ssm_in": "mixer.in_proj_qkvz", "ssm_ba": "mixer.in_proj_ba"}, norm_offset=1.0,
        when=lambda facts: bool(facts.layers_with("ssm_in.weight")),
    ),
    # With its projections split, it is the same as Qwen3.5.
    "qwen3next": Architecture("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", _qwen3_next, _DELTA_NET, norm_offset=1.0),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", "qwen3_5_text", _qwen3_next, _DELTA_NET, norm_offset=1.0, tiled=True
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", _qwen3_next, _DELTA_NET, norm_offset=1.0, tiled=True
    ),
}  # fmt: skip
