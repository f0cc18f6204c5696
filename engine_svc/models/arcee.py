"""Arcee AFM (2025): Llama with squared ReLU in feed-forward layers without gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import llama
from engine_svc.models.config import ModelConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are as in Llama."""
    common = llama.config_of({"hidden_act": "relu2", "rms_norm_eps": 1e-5, **config})
    return dataclasses.replace(common, mlp_gated=False, mlp_has_up=True)
