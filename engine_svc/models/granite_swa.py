"""Granite with sliding windows on three of four layers, and attention sinks (IBM 2026): dense, or with mixtures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import granite, granite_moe
from engine_svc.models.config import ModelConfig, sliding_windows
from quire.errors import StartupError

# Fields that configurations of dense models may leave out.
_DENSE: dict[str, Any] = {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Each layer may have its own rotary base; zero means that it does not rotate.

    Raises:
        StartupError: bases differ among the layers with a window, or among those without.
    """
    if config["architectures"][0] == "GraniteMoeSWAForCausalLM":
        common = granite_moe.config_of(config)
    else:
        common = granite.config_of({**_DENSE, **config})
    windows = sliding_windows({"sliding_window": 128, **config}, 4, whole=0)
    rope = common.rope_parameters
    bases = config.get("layer_rope_theta") or [rope["rope_theta"]] * common.num_layers
    whole = {base for base, window in zip(bases, windows, strict=True) if base and window is None}
    local = {base for base, window in zip(bases, windows, strict=True) if base and window is not None}
    if len(whole) > 1 or len(local) > 1:
        raise StartupError(
            "config.json: layer_rope_theta differs among layers with a window, or among those without, which is not "
            "supported."
        )
    return dataclasses.replace(
        common, attention_sinks="all", sliding_windows=windows,
        no_rope_layers=frozenset(index for index, base in enumerate(bases) if not base),
        rope_parameters={**rope, "rope_theta": next(iter(whole), rope["rope_theta"])},
        local_rope_parameters={**rope, "rope_theta": next(iter(local))} if local and local != whole else None,
    )  # fmt: skip
