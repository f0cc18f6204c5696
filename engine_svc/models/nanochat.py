"""nanochat (Karpathy 2025): norms without weights, also of embeddings and heads; squared ReLU without gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, rope_parameters
from quire.errors import StartupError

_MODULES = {"fc1": "fc_in", "fc2": "fc_out"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Heads are rotated backwards. Their norms come after that, which makes no difference without weights.

    Raises:
        StartupError: positions are scaled.
    """
    rope = rope_parameters(config)
    if rope["rope_type"] != "default":
        raise StartupError(
            f"config.json has the rope_type {rope['rope_type']!r}; for nanochat, only default is supported."
        )
    bias = bool(config.get("attention_bias"))
    return base_config(
        {"hidden_act": "relu2", **config},
        norm_weight=False, embedding_norm=True, qk_norm="weightless", qkv_bias=bias, output_bias=bias, mlp_gated=False,
        logits_softcap=config.get("final_logit_softcapping", 15.0), module_names=_MODULES,
        rope_parameters={**rope, "rope_type": "linear", "factor": -1.0},  # the angles are divided by this
    )  # fmt: skip
