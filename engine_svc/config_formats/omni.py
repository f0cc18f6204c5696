"""Qwen's Omni models, which also speak: the part of config.json for the model that reads, hears and writes."""

from __future__ import annotations

from typing import Any

# By the type of the whole model; in Transformers, the part is called the thinker.
_THINKERS = {
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
_OF_WHOLE = ("dtype", "torch_dtype", "quantization_config", "bos_token_id", "eos_token_id")


def without_speech(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of that part. Those of other models are returned unchanged."""
    architecture, thinker = _THINKERS.get(str(config.get("model_type"))), config.get("thinker_config")
    if architecture is None or not isinstance(thinker, dict):
        return config
    return {**{name: config[name] for name in _OF_WHOLE if name in config}, **thinker, "architectures": [architecture]}
