"""EXAONE 4 (LG): norms after attention and feed-forward, and of each head; layers without a window do not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, layer_apart, sliding_windows


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """If no layer has a window, all layers rotate."""
    count, pattern = config["num_hidden_layers"], config.get("sliding_window_pattern") or 4
    windows = (None,) * count
    if sizes := config.get("sliding_windows"):  # of each layer; 0 means none
        types = config.get("layer_types") or ["sliding_attention"] * count
        windows = tuple(
            size if size and kind == "sliding_attention" else None for size, kind in zip(sizes, types, strict=False)
        )
    elif config.get("sliding_window") is not None:
        windows = sliding_windows(config, _distance(pattern))
    return base_config(
        config, qk_norm="head", norm_placement="after", sliding_windows=windows,
        no_rope_layers=frozenset(index for index in range(count) if any(windows) and windows[index] is None),
        ignored_names=("mtp.",),  # of EXAONE 4.5: a layer for multi-token prediction
    )  # fmt: skip


def multi_token_layer(config: ModelConfig) -> ModelConfig:
    """The shape of the layer for multi-token prediction. Assumed, as vLLM does: like the model's first layer."""
    return layer_apart(config, None, config.sliding_windows[0], rotates=0 not in config.no_rope_layers)


def _distance(pattern: int | str) -> int:
    """Distance between layers without a window; may also be written as a pattern like `LLLG`."""
    return len(pattern) if isinstance(pattern, str) else pattern
