"""Youtu LLM (Tencent 2025): DeepSeek's compressed attention, and dense feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are where DeepSeek has them."""
    return deepseek.compressed({**_DEFAULTS, **config})
