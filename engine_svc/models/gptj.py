"""GPT-J (EleutherAI 2021) and CodeGen (Salesforce 2022): parallel attention and feed-forward after one layer norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.part import Layout
from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names

# Names from the first GPT, which other families use too.
GPT_NAMES = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size",
}  # fmt: skip
GPT_MODULES = {
    "transformer": "model", "wte": "embed_tokens", "h": "layers", "ln_f": "norm", "ln_1": "input_layernorm",
    "attn": "self_attn", "out_proj": "o_proj",
}  # fmt: skip
# CodeGen's queries, values and keys are in four groups, one for each core that it was trained on.
_GROUPS = Layout(("q", "v", "k"), groups=4)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first values of each head are rotated, neighboring ones with each other."""
    config = by_common_names(config, GPT_NAMES)
    size, heads = config["hidden_size"], config["num_attention_heads"]
    return base_config(
        {**config, "intermediate_size": config.get("n_inner") or 4 * size},
        num_kv_heads=heads, head_dim=size // heads, rotary_dim=config.get("rotary_dim") or size // heads,
        rope_interleaved=True,
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_epsilon", 1e-5), norm_placement="parallel",
        activation=activation(config.get("activation_function", "gelu_new")), mlp_gated=False, mlp_bias=True,
        qkv_layout=_GROUPS if config["architectures"][0] == "CodeGenForCausalLM" else Layout(),
        head_bias=True, module_names=GPT_MODULES, ignored_names=("attn.causal_mask",),
    )  # fmt: skip
