"""MPT (MosaicML 2023): ALiBi in place of positions, and no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.config import ModelConfig, base_config, by_common_names
from quire.errors import StartupError

# Names of fields and of modules, which DBRX has adopted.
SIZES = {
    "d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
}  # fmt: skip
MODULES = {
    "transformer": "model", "wte": "embed_tokens", "blocks": "layers", "norm_f": "norm", "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm", "attn": "self_attn", "Wqkv": "qkv_proj", "out_proj": "o_proj",
    "ffn": "mlp",
}  # fmt: skip
# Options that Transformers' implementation does not have either, and their values when they are off.
_PLAIN: dict[str, Any] = {
    "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "qk_gn": False, "alibi": True,
    "rope": False, "sliding_window_size": -1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Queries, keys and values may be clipped.

    Raises:
        StartupError: it asks for an option that only the custom code of the first checkpoints has.
    """
    config = by_common_names(config, SIZES)
    attention = config.get("attn_config") or {}
    for name, plain in _PLAIN.items():
        if attention.get(name, plain) != plain:
            raise StartupError(f"config.json: attn_config has {name} {attention[name]!r}; supported is {plain!r}.")
    if not config.get("no_bias", True):
        raise StartupError("config.json: no_bias is false; only models without biases are supported.")
    size, heads = config["hidden_size"], config["num_attention_heads"]
    return base_config(
        {**config, "intermediate_size": int(config.get("expansion_ratio", 4) * size)},
        num_kv_heads=heads, head_dim=size // heads, qkv_clip=attention.get("clip_qkv"),
        attention_scale=attention.get("softmax_scale") or (size // heads) ** -0.5,
        attention_slopes=alibi_slopes(heads, attention.get("alibi_bias_max", 8)),
        no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        norm="layer", norm_eps=config.get("layer_norm_epsilon", 1e-5), activation="gelu", mlp_gated=False,
        logits_scale=_logits_scale(config.get("logit_scale"), size),
        tie_word_embeddings=config.get("tie_word_embeddings", True),
        module_names=MODULES | {"up_proj": "fc_in", "down_proj": "fc_out"},
    )  # fmt: skip


def _logits_scale(given: float | str | None, size: int) -> float:
    if given == "inv_sqrt_d_model":
        return float(size**-0.5)
    return 1.0 if given is None else float(given)
