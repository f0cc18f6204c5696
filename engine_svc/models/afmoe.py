"""AFMoE, Arcee Trinity (2025): gated attention, norms before and after, mixtures of experts as in DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, base_config, sliding_windows

_DEFAULTS: dict[str, Any] = {
    "head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 1024, "num_dense_layers": 1, "num_shared_experts": 2,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
_MODULES = {"pre_mlp_layernorm": "pre_feedforward_layernorm", "post_mlp_layernorm": "post_feedforward_layernorm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Each layer has either a sliding window or no rotation."""
    given, bias = {**_DEFAULTS, **config}, bool(config.get("attention_bias"))
    windows = sliding_windows(given, config.get("global_attn_every_n_layers") or 4)
    return base_config(
        given, sliding_windows=windows, attention_gates="values", qk_norm="head", norm_placement="around",
        no_rope_layers=frozenset(index for index, window in enumerate(windows) if window is None),
        qkv_bias=bias, output_bias=bias, moe=deepseek.mixtures(given),
        embedding_multiplier=config["hidden_size"] ** 0.5 if config.get("mup_enabled") else 1.0,
        module_names=_MODULES, renames=deepseek.ROUTER_RENAMES,
    )  # fmt: skip
