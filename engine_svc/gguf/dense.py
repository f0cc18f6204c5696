"""Families without mixtures of experts in which all layers attend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.gguf.architecture import (
    GATE_AND_UP,
    NORM_BETWEEN,
    NORMS_BEHIND,
    PLAIN_MLP,
    Architecture,
    layer_types,
    multipliers,
    window,
)
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.rotary import head_size, rope_parameters
from quire.errors import StartupError


def _gemma2(facts: Facts) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": facts.find("attn_logit_softcapping"),
        "final_logit_softcapping": facts.find("final_logit_softcapping"),
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": layer_types(facts, 2),
        "query_pre_attn_scalar": _query_scalar(facts, 46),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": float(facts.find("rope.freq_base_swa", 10000.0))}
    return {
        "sliding_window": facts.need("attention.sliding_window"),
        "layer_types": layer_types(facts, 6),
        "final_logit_softcapping": facts.find("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(facts, 62),
        "rope_parameters": {"full_attention": rope_parameters(facts), "sliding_attention": local},
    }


def _query_scalar(facts: Facts, layers: int) -> float:
    """The query scalar, which files lack: the head size, except in a generation's largest model (known by layers)."""
    if facts.need("block_count") == layers:
        return float(facts.need("embedding_length") / facts.need("attention.head_count"))
    return float(head_size(facts))


def _phi3(facts: Facts) -> dict[str, Any]:
    original = facts.find("rope.scaling.original_context_length")
    return window(facts) | ({"original_max_position_embeddings": original} if original else {})


def _granite(facts: Facts) -> dict[str, Any]:
    return multipliers(facts, head_size(facts) ** -0.5)


def _cohere(facts: Facts) -> dict[str, Any]:
    return {"logit_scale": facts.need("logit_scale"), "use_qk_norm": facts.has("blk.0.attn_q_norm.weight")}


def _cohere2(facts: Facts) -> dict[str, Any]:
    windows = {"sliding_window": facts.need("attention.sliding_window"), "layer_types": layer_types(facts, 4)}
    return _cohere(facts) | windows


def _olmo3(facts: Facts) -> dict[str, Any]:
    """Layers with a window have the same rotary embedding, without scaling."""
    rope = rope_parameters(facts)
    local = {"rope_type": "default", "rope_theta": float(facts.find("rope.freq_base_swa", rope["rope_theta"]))}
    return window(facts) | {
        "layer_types": layer_types(facts, 4),
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }


def _exaone4(facts: Facts) -> dict[str, Any]:
    return window(facts) | ({"layer_types": layer_types(facts, 4)} if window(facts)["sliding_window"] else {})


def _falcon(facts: Facts) -> dict[str, Any]:
    """Files of the older architecture are read as the newer one with a single norm, which is the same once split.

    Raises:
        StartupError: the model is one of the first generation (Falcon RW).
    """
    if facts.has("blk.0.attn_qkv.bias"):
        raise StartupError(
            f"{facts.model.files[0]}: blk.0.attn_qkv.bias belongs to a Falcon RW, which uses ALiBi instead of "
            "positions, and GGUF files cannot express that. Use the model's safetensors."
        )
    return {
        "new_decoder_architecture": True, "num_kv_heads": facts.find("attention.head_count_kv", 1) or 1,
        "num_ln_in_parallel_attn": 2 if _has_two_norms(facts) else 1,
        "ffn_hidden_size": facts.need("feed_forward_length"), "bias": False, "alibi": False,
    }  # fmt: skip


def _has_two_norms(facts: Facts) -> bool:
    return facts.has("blk.0.attn_norm_2.weight")


def _gpt_neox(facts: Facts) -> dict[str, Any]:
    return {
        "use_parallel_residual": bool(facts.find("use_parallel_residual", True)), "hidden_act": "gelu",
        "attention_bias": facts.has("blk.0.attn_qkv.bias") or facts.has("blk.0.attn_q.bias"),
    }  # fmt: skip


def _mpt(facts: Facts) -> dict[str, Any]:
    """
    Raises:
        StartupError: the model does not use ALiBi, or has tensors that only the first checkpoints' own code supports.
    """
    for tensor in ("position_embd.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_qkv.bias"):
        if facts.has(tensor):
            raise StartupError(
                f"{facts.model.files[0]}: {tensor}: MPT is only supported without it. Use another model."
            )
    most = facts.need("attention.max_alibi_bias")
    return {
        "attn_config": {"clip_qkv": facts.find("attention.clamp_kqv") or None, "alibi_bias_max": most},
        "expansion_ratio": facts.need("feed_forward_length") / facts.need("embedding_length"),
    }


def _glm(facts: Facts) -> dict[str, Any]:
    """
    Raises:
        StartupError: the model is of an earlier generation than GLM 4.
    """
    if not facts.has("blk.0.ffn_norm.weight"):
        raise StartupError(f"{facts.model.files[0]} lacks blk.0.ffn_norm.weight: of chatglm, only GLM 4 is supported.")
    return {"attention_bias": facts.has("blk.0.attn_q.bias") or facts.has("blk.0.attn_qkv.bias")}


def _ernie(facts: Facts) -> dict[str, Any]:
    return {"use_bias": facts.has("blk.0.attn_q.bias")}


def _mistral3(facts: Facts) -> dict[str, Any]:
    """
    Raises:
        StartupError: the model has experts.
    """
    if facts.find("expert_count", 0):
        raise StartupError(f"{facts.model.files[0]}: of mistral3, only models without experts are supported.")
    rope = rope_parameters(facts)
    if growth := facts.find("rope.scaling.yarn_log_multiplier", 0.0):
        rope |= {"mscale": growth, "mscale_all_dim": growth}
    if beta := facts.find("attention.temperature_scale", 0.0):
        floor = facts.need("rope.scaling.original_context_length")
        rope |= {"llama_4_scaling_beta": beta, "original_max_position_embeddings": floor}
    return {"rope_parameters": rope}


_XIELU = {f"xielu.{name}": f"mlp.act_fn.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")}

# By llama.cpp's architecture names.
DENSE: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "llama", neighbours=True),
    "mistral3": Architecture("Ministral3ForCausalLM", "ministral3", _mistral3, neighbours=True),
    "apertus": Architecture(
        "ApertusForCausalLM", "apertus", lambda facts: {"hidden_act": "xielu"}, numbers=_XIELU
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", _gemma2, NORMS_BEHIND, norm_offset=1.0),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3, NORMS_BEHIND, norm_offset=1.0),
    "phi2": Architecture("PhiForCausalLM", "phi", lambda facts: {"hidden_act": "gelu_new"}, PLAIN_MLP),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _phi3, GATE_AND_UP),
    "olmo2 with windows": Architecture(
        "Olmo3ForCausalLM", "olmo3", _olmo3, NORMS_BEHIND, when=lambda facts: bool(window(facts)["sliding_window"])
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2", modules=NORMS_BEHIND),
    "exaone4": Architecture("Exaone4ForCausalLM", "exaone4", _exaone4, NORMS_BEHIND),
    "granite": Architecture("GraniteForCausalLM", "granite", _granite, neighbours=True),
    "command-r": Architecture("CohereForCausalLM", "cohere", _cohere),
    "cohere2": Architecture("Cohere2ForCausalLM", "cohere2", _cohere2),
    "chatglm": Architecture("GlmForCausalLM", "glm", _glm, GATE_AND_UP),
    "glm4": Architecture(
        "Glm4ForCausalLM", "glm4",
        modules=GATE_AND_UP
        | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", neighbours=True),
    "seed_oss": Architecture(
        "SeedOssForCausalLM", "seed_oss", lambda facts: {"attention_out_bias": facts.has("blk.0.attn_output.bias")},
        NORM_BETWEEN,
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", "ernie4_5", _ernie),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "bloom": Architecture("BloomForCausalLM", "bloom", modules=PLAIN_MLP | {"token_embd_norm": "embedding_norm"}),
    "falcon with two norms": Architecture(
        "FalconForCausalLM", "falcon", _falcon,
        PLAIN_MLP | {"attn_norm": "mlp_layernorm", "attn_norm_2": "input_layernorm"}, when=_has_two_norms,
    ),
    "falcon": Architecture("FalconForCausalLM", "falcon", _falcon, PLAIN_MLP),
    "gptneox": Architecture("GPTNeoXForCausalLM", "gpt_neox", _gpt_neox, PLAIN_MLP),
    "mpt": Architecture("MptForCausalLM", "mpt", _mpt, PLAIN_MLP),
}  # fmt: skip
