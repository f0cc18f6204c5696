"""Gemma 3n (Google 2025), the text model: four streams of hidden states, of which layers compute one.

As in the small models of Gemma 4, layers add inputs by token id, and the last ones have no keys and values of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from engine_svc.models.config import (
    ModelConfig,
    activation,
    base_config,
    local_rotation,
    one_rotation,
    rope_parameters,
    sliding_windows,
)
from engine_svc.models.gemma4 import TOKEN_INPUT_RENAMES, borrowed_layers, unused_names
from engine_svc.models.gemma_config import AltUpConfig, TokenInputsConfig
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_key_value_heads": 2, "head_dim": 256,
    "sliding_window": 512, "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "altup_num_inputs": 4,
    "altup_active_idx": 0, "num_kv_shared_layers": 15, "laurel_rank": 64, "final_logit_softcapping": 30.0,
}  # fmt: skip
_RENAMES = (
    *TOKEN_INPUT_RENAMES,
    (r"_coefs\.weight$", "_coefs"),
    (r"\baltup_projections\b", "stream_inputs.projections"),
    (r"\baltup_unembed_projections\b", "norm.projections"),
)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: layers compute another stream than the first.
        ValueError: a list has not one entry for each layer, or a layer's sparsity is not below one.
    """
    config = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    if config["altup_active_idx"] != 0:
        raise StartupError(f"config.json: altup_active_idx is {config['altup_active_idx']}; only 0 is supported.")
    windows = sliding_windows(config, 5)
    borrowed = borrowed_layers(config, windows)
    sizes = _by_layer(config, "intermediate_size", config["intermediate_size"])
    own_sizes = {layer: size for layer, size in enumerate(sizes) if size != sizes[0]}
    whole, bias = one_rotation(config), bool(config.get("attention_bias"))
    inputs = TokenInputsConfig(config["vocab_size_per_layer_input"], config["hidden_size_per_layer_input"], 0)
    is_scaled = config.get("altup_correct_scale", True)
    return base_config(
        whole, head_dim=config["head_dim"], sliding_windows=windows, rope_parameters=rope_parameters(whole),
        local_rope_parameters=local_rotation(config, config["rope_local_base_freq"]), attention_scale=1.0,
        qk_norm="head", value_norm=True, borrowed=borrowed, qkv_bias=bias, output_bias=bias,
        intermediate_size=sizes[0], own_sizes=own_sizes, gate_cutoffs=_gate_cutoffs(config),
        activation=activation(config.get("hidden_activation") or "gelu_pytorch_tanh"), norm_placement="around, streams",
        altup=AltUpConfig(config["altup_num_inputs"], config["laurel_rank"], is_scaled),
        stream_count=config["altup_num_inputs"], keeps_all_rows=not borrowed,
        embedding_scale=config["hidden_size"] ** 0.5, logits_softcap=config["final_logit_softcapping"],
        tie_word_embeddings=config.get("tie_word_embeddings", True), token_inputs=inputs,
        renames=_RENAMES, ignored_names=(*unused_names(borrowed), *(() if is_scaled else ("correct_output_scale",))),
    )  # fmt: skip


def _gate_cutoffs(config: Mapping[str, Any]) -> dict[int, float]:
    """Below how many standard deviations over their mean gates become zero, of the layers with such a limit."""
    layers = config["num_hidden_layers"]
    default = [0.95] * 10 + [0.0] * (layers - 10) if layers > 10 else 0.0
    sparsity = _by_layer(config, "activation_sparsity_pattern", default)
    return {layer: NormalDist().inv_cdf(share) for layer, share in enumerate(sparsity) if share > 0}


def _by_layer(config: Mapping[str, Any], name: str, default: Any) -> list[Any]:
    """A field that is a list with an entry for each layer, or one value for all layers."""
    given, layers = config.get(name, default), config["num_hidden_layers"]
    found = given if isinstance(given, list) else [given] * layers
    if len(found) != layers:
        raise ValueError(f"{name} has {len(found)} entries for {layers} layers")
    return found
