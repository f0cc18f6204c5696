"""Models with only Mamba layers: Mamba (Gu and Dao 2023), Falcon Mamba (TII 2024), Mamba 2 (Dao and Gu 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.bamba import number
from engine_svc.models.config import ModelConfig, base_config
from engine_svc.models.recurrent_config import Mamba2Config, MambaConfig, RecurrentConfig

_NAMES = {"backbone": "model", "embeddings": "embed_tokens", "embedding": "embed_tokens", "norm_f": "norm"}
# These models have no positions; this is the length that is reserved for a sequence's tokens.
_LENGTH = 32768
# Placeholders for fields of attention and feed-forward, which no layer has.
_NO_ATTENTION = {"num_attention_heads": 1, "head_dim": 16, "intermediate_size": 0}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """No layer attends, and none has a feed-forward layer."""
    is_mamba2 = config["architectures"][0] == "Mamba2ForCausalLM"
    layer = _mamba2(config) if is_mamba2 else _mamba(config)
    return base_config(
        {"max_position_embeddings": _LENGTH, **config, **_NO_ATTENTION},
        norm_eps=config.get("layer_norm_epsilon", 1e-5), norm_placement="alone", module_names=_NAMES,
        recurrent=dict.fromkeys(range(config["num_hidden_layers"]), layer),
        tie_word_embeddings=config.get("tie_word_embeddings", not is_mamba2),
    )  # fmt: skip


def _mamba(config: Mapping[str, Any]) -> RecurrentConfig:
    hidden_size, rank = config["hidden_size"], config.get("time_step_rank", "auto")
    is_falcon = config["architectures"][0] == "FalconMambaForCausalLM"
    return MambaConfig(
        channels=config.get("intermediate_size") or int(config.get("expand", 2) * hidden_size),
        state_size=config.get("state_size", 16),
        taps=config.get("conv_kernel", 4), rank=math.ceil(hidden_size / 16) if rank == "auto" else rank,
        bias=bool(config.get("use_bias")), convolution_bias=bool(config.get("use_conv_bias", True)),
        norms="plain" if is_falcon else "none", norm_epsilon=config.get("mixer_rms_eps", 1e-6),
    )  # fmt: skip


def _mamba2(config: Mapping[str, Any]) -> RecurrentConfig:
    least, most = (number(each) for each in config.get("time_step_limit") or (0.0, math.inf))
    return Mamba2Config(
        heads=config.get("num_heads", 128), head_dim=config.get("head_dim", 64), groups=config.get("n_groups", 8),
        state_size=config.get("state_size", 128), taps=config.get("conv_kernel", 4),
        bias=bool(config.get("use_bias")), convolution_bias=bool(config.get("use_conv_bias", True)),
        time_limits=(least, most), norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
    )  # fmt: skip
