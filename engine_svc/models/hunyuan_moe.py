"""Hunyuan with mixtures of experts (Tencent 2025, for example A13B): otherwise like the dense model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import hunyuan
from engine_svc.models.config import ModelConfig, MoeConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Fields that may differ between layers are one number or a list."""
    count = config["num_hidden_layers"]

    def each(name: str, default: int | None = None) -> list[int]:
        value = config.get(name, default) if default is not None else config[name]
        return list(value) if isinstance(value, list) else [value] * count

    moe = tuple(
        MoeConfig(experts, chosen, size, renormalize=True, shared_size=config["intermediate_size"] * shared or None)
        for experts, chosen, size, shared in zip(
            each("num_experts"), each("moe_topk"), each("moe_intermediate_size", config["intermediate_size"]),
            each("num_shared_expert", 1), strict=True,
        )
    )  # fmt: skip
    return dataclasses.replace(hunyuan.config_of(config), moe=moe)
