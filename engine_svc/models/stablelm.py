"""StableLM 3B, 2 1.6B and 2 12B, Stable Code (Stability AI 2023): layer norms, a quarter of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, by_common_names

# In configurations of the first models, whose architecture was StableLMEpochForCausalLM.
_FIRST_NAMES = {"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"}
_MODULES = {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The largest model norms each head, and has attention and feed-forward in parallel after one norm."""
    config = by_common_names(config, _FIRST_NAMES)
    return base_config(
        {"partial_rotary_factor": 0.25, **config},
        qkv_bias=bool(config.get("use_qkv_bias")), qk_norm="each" if config.get("qk_layernorm") else "none",
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_eps", 1e-5),
        norm_placement="parallel" if config.get("use_parallel_residual") else "before", module_names=_MODULES,
    )  # fmt: skip
