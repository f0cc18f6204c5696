"""Command R, R7B and A (Cohere): attention and feed-forward in parallel, after one layer norm without bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, sliding_windows


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """From the second generation on, each layer has either a sliding window or no rotation."""
    second = config["architectures"][0] != "CohereForCausalLM"
    windows = (
        sliding_windows(config, config.get("sliding_window_pattern") or 4)
        if second
        else (None,) * config["num_hidden_layers"]
    )
    bias = bool(config.get("attention_bias"))
    return base_config(
        config,
        norm="layer", norm_eps=config.get("layer_norm_eps", 1e-5), norm_placement="parallel",
        qkv_bias=bias, output_bias=bias, qk_norm="each" if config.get("use_qk_norm") else "none",
        sliding_windows=windows, rope_interleaved=True,
        no_rope_layers=frozenset(index for index, window in enumerate(windows) if second and window is None),
        logits_scale=config.get("logit_scale", 0.0625),
        tie_word_embeddings=config.get("tie_word_embeddings", True),
    )  # fmt: skip
