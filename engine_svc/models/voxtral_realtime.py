"""Voxtral Realtime (Mistral 2026): writes down a recording while it hears it.

A token's embedding is the sum of its own and of what an encoder makes of 80 ms of the recording, from its beginning on.
The text is behind the recording by a fixed delay, of which the model is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config

_RENAMES = (
    (r"\.ada_rms_norm\.linear1\.weight$", ".post_attention_layernorm.inner"),
    (r"\.ada_rms_norm\.linear2\.weight$", ".post_attention_layernorm.outer"),
)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """All layers have the same window, or none."""
    return base_config(
        config, sliding_windows=(config.get("sliding_window"),) * config["num_hidden_layers"],
        frames_per_token=config.get("audio_length_per_tok", 8),
        delay_tokens=config.get("default_num_delay_tokens", 6), renames=_RENAMES,
    )  # fmt: skip
