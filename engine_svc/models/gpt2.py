"""GPT (OpenAI 2018), GPT-2 (2019) and GPT BigCode (2023): learned positions, and transposed matrices (inputs first)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.part import Layout
from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names
from engine_svc.models.gptj import GPT_MODULES, GPT_NAMES
from quire.errors import StartupError

_NAMES = {**GPT_NAMES, "afn": "activation_function"}
_MODULES = {
    **GPT_MODULES, "wpe": "positions", "c_attn": "qkv_proj", "c_fc": "fc_in", "ln_2": "post_attention_layernorm",
}  # fmt: skip
# The first GPT norms the sums of input and output of attention and feed-forward, and has no norm after the last layer.
_FIRST_MODULES = {
    **_MODULES, "tokens_embed": "embed_tokens", "positions_embed": "positions", "ln_1": "attention_norm",
    "ln_2": "output_norm",
}  # fmt: skip
_TRANSPOSED = (".c_attn.weight", ".c_fc.weight", ".c_proj.weight")


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are everywhere; BigCode's matrices are not transposed.

    Raises:
        StartupError: the scale of scores differs between layers.
    """
    if config.get("scale_attn_by_inverse_layer_idx"):
        raise StartupError(
            "config.json sets scale_attn_by_inverse_layer_idx, which is not supported; use --model-impl transformers."
        )
    architecture, config = config["architectures"][0], by_common_names(config, _NAMES)
    is_first, is_bigcode = architecture == "OpenAIGPTLMHeadModel", architecture == "GPTBigCodeForCausalLM"
    size, heads = config["hidden_size"], config["num_attention_heads"]
    name = config.get("activation_function", "gelu_pytorch_tanh" if is_bigcode else "gelu_new")
    return base_config(
        {**config, "intermediate_size": config.get("n_inner") or 4 * size},
        num_kv_heads=1 if is_bigcode and config.get("multi_query", True) else heads, head_dim=size // heads,
        attention_scale=(size // heads) ** -0.5 if config.get("scale_attn_weights", True) else 1.0,
        qkv_layout=Layout(groups=heads) if is_bigcode and not config.get("multi_query", True) else Layout(),
        qkv_bias=True, output_bias=True, no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        num_positions=config["max_position_embeddings"],
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_epsilon", 1e-5),
        norm_placement="sums" if is_first else "before", has_norm=not is_first,
        activation=activation("gelu_new" if is_first and name == "gelu" else name), mlp_gated=False, mlp_bias=True,
        tie_word_embeddings=config.get("tie_word_embeddings", True),
        module_names=_FIRST_MODULES if is_first else _MODULES,
        transposed_names=() if is_bigcode else _TRANSPOSED,
    )  # fmt: skip
