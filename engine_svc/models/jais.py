"""Jais 13B and 30B (Inception, MBZUAI, Cerebras 2023): GPT-2 with gates, ALiBi, and factors of µP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.config import ModelConfig, base_config, by_common_names
from engine_svc.models.gptj import GPT_MODULES, GPT_NAMES
from quire.errors import StartupError

_MODULES = {**GPT_MODULES, "c_attn": "qkv_proj", "ln_2": "post_attention_layernorm"}
_RENAMES = (
    (r"\.attn\.c_proj\.", ".attn.o_proj."), (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
    (r"\.mlp\.c_fc\.", ".mlp.up_proj."), (r"\.mlp\.c_fc2\.", ".mlp.gate_proj."),
)  # fmt: skip
_EXPECTED = {"position_embedding_type": "alibi", "activation_function": "swiglu"}
_REFUSED = ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are everywhere. Older configurations have other names for the factors. Facts are from vLLM.

    Raises:
        StartupError: it has an option that none of the supported models uses.
    """
    for name, expected in _EXPECTED.items():
        if config.get(name) != expected:
            raise StartupError(f"config.json: {name} is {config.get(name)!r}; expected {expected!r}.")
    for name in _REFUSED:
        if config.get(name):
            raise StartupError(f"config.json has {name}, which is not supported for Jais.")
    given = by_common_names(config, GPT_NAMES)
    size, heads = given["hidden_size"], given["num_attention_heads"]
    divided = given.get("scale_qk_dot_by_d", given.get("mup_scale_qk_dot_by_d"))
    width = given.get("width_scale")
    return base_config(
        {**given, "intermediate_size": given.get("n_inner") or 4 * size}, num_kv_heads=heads, head_dim=size // heads,
        attention_scale=(size // heads) ** (-1.0 if divided else -0.5), attention_slopes=alibi_slopes(heads),
        no_rope_layers=frozenset(range(given["num_hidden_layers"])), qkv_bias=True, output_bias=True, mlp_bias=True,
        norm="layer", norm_bias=True, norm_eps=given.get("layer_norm_epsilon", 1e-5), activation="silu",
        embedding_scale=given.get("embeddings_scale", given.get("mup_embeddings_scale", 1.0)),
        logits_scale=given.get("mup_output_alpha", 1.0) * given.get("mup_width_scale", 1.0) if width is None else width,
        tie_word_embeddings=given.get("tie_word_embeddings", True), module_names=_MODULES, renames=_RENAMES,
        transposed_names=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight", ".c_fc2.weight"),
        ignored_names=(".attn.bias", ".attn.masked_bias", ".relative_pe."),
    )  # fmt: skip
