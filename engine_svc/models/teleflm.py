"""Tele-FLM 52B (BAAI, China Telecom 2024): Llama with factors on embeddings and on logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import llama
from engine_svc.models.config import ModelConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Facts are from vLLM."""
    common = llama.config_of(config)
    if not config.get("use_mup"):
        return common
    return dataclasses.replace(
        common, embedding_scale=config["input_mult"], logits_scale=config["output_mult"] / config["mup_scale_factor"]
    )
