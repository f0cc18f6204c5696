"""MiniMax Text 01 and M1 (2025): lightning attention in most layers, else attention; mixtures of experts in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import Balance, ModelConfig, MoeConfig, base_config
from engine_svc.models.recurrent_config import LightningConfig

# Fields of Balance → the part's name in the released configurations.
_FACTORS = {"attention": "full_attention", "recurrent": "linear_attention", "mlp": "mlp"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers attend if their type or entry in `attn_type_list` says so; without these, every second layer does."""
    layers, heads = range(config["num_hidden_layers"]), config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rotation = {"partial_rotary_factor": config["rotary_dim"] / head_dim} if config.get("rotary_dim") else {}
    attends = [bool(each) for each in config.get("attn_type_list") or ()]
    if types := config.get("layer_types"):
        attends = [each == "full_attention" for each in types]
    attends = attends or [index % 2 == 0 for index in layers]
    moe = MoeConfig(config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], True)
    return base_config(
        {**config, **rotation}, head_dim=head_dim,
        norm_eps=config.get("rms_norm_eps", 1e-5), moe=(moe,) * len(layers), norm_placement="residual",
        balance=Balance(**{part: _balance(config, name) for part, name in _FACTORS.items()}),
        recurrent={
            index: LightningConfig(heads=heads, head_dim=head_dim, pace=1 - index / (len(layers) - 1 + 1e-5) + 1e-5)
            for index in layers if not attends[index]
        },
        recurrent_name="self_attn", ignored_names=("slope_rate", "query_decay", "key_decay", "diagonal_decay"),
    )  # fmt: skip


def _balance(config: Mapping[str, Any], part: str) -> tuple[float, float]:
    """Factors of a residual connection: alpha on the residual, beta on what is added to it."""
    short = part.replace("attention", "attn")
    alpha, beta = (
        config.get(f"{short}_{name}_factor", config.get(f"layernorm_{part}_{name}", 1.0)) for name in ("alpha", "beta")
    )
    return float(alpha), float(beta)
