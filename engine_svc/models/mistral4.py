"""Mistral 4: DeepSeek's compressed attention, queries that grow as in Ministral 3, and softmax mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, rope_parameters
from engine_svc.models.ministral3 import growing_queries
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "moe_intermediate_size": 2048, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Experts have no bias that affects their choice.

    Raises:
        StartupError: experts are in groups.
    """
    given = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    if "num_local_experts" in config:  # the same by another name
        given["n_routed_experts"] = config["num_local_experts"]
    if given["n_group"] > 1:
        raise StartupError(f"config.json: n_group is {given['n_group']}; for Mistral 4, only 1 is supported.")
    mixtures, rope = deepseek.mixtures(given), rope_parameters(config)
    rope.pop("partial_rotary_factor", None)  # of whole heads, of which a part of that size is rotated
    return deepseek.compressed(
        {**given, "q_lora_rank": config.get("q_lora_rank", _DEFAULTS["q_lora_rank"]), "rope_parameters": rope},
        moe=tuple(each and dataclasses.replace(each, scoring="softmax", choice_bias=False) for each in mixtures),
        temperature=growing_queries(config),
    )  # fmt: skip
