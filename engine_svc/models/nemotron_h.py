"""Nemotron H (NVIDIA 2025), Nemotron Nano 2 and 3: each layer is only Mamba 2, attention, feed-forward or a mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_svc.models.bamba import number
from engine_svc.models.config import ModelConfig, MoeConfig, activation, attending_layer, base_config
from engine_svc.models.recurrent_config import Mamba2Config
from quire.errors import StartupError

_NAMES = {"backbone": "model", "embeddings": "embed_tokens", "norm_f": "norm"}
_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # in patterns
_OTHERWISE = {"linear_attention": "mamba", "full_attention": "attention"}  # names in Transformers 5


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A list or a pattern of letters gives the layers' kinds. None rotates; feed-forward layers have no gates."""
    named = config.get("layers_block_type") or config.get("layer_types")
    kinds = _kinds(named, config.get("hybrid_override_pattern"))
    mamba2, moe = _mamba2(config), _mixture(config) if "moe" in kinds else None
    if wrong := set(kinds) - set(_KINDS.values()):
        raise ValueError(f"layers of the kinds {', '.join(sorted(wrong))}")
    return base_config(
        {**config, "num_hidden_layers": len(kinds)},
        norm_placement="alone", norm_eps=config.get("layer_norm_epsilon", 1e-5), module_names=_NAMES,
        activation=activation(config.get("mlp_hidden_act", "relu2")), mlp_gated=False, mlp_has_up=True,
        mlp_bias=bool(config.get("mlp_bias")), no_rope_layers=frozenset(range(len(kinds))),
        recurrent={index: mamba2 for index, kind in enumerate(kinds) if kind == "mamba"},
        attending=frozenset(index for index, kind in enumerate(kinds) if kind == "attention"),
        moe=tuple(moe if kind == "moe" else None for kind in kinds), ignored_names=("mtp.",),
    )  # fmt: skip


def multi_token_layers(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """The shape of the layers for multi-token prediction: one that attends, and one with experts.

    Facts are from vLLM: Transformers has no such layers.

    Raises:
        StartupError: they are of other kinds.
    """
    kinds = _kinds(raw.get("mtp_layers_block_type"), raw.get("mtp_hybrid_override_pattern", "*E"))
    attending = attending_layer(config)
    if kinds != ["attention", "moe"] or not attending.moe[0]:
        raise StartupError(
            f"config.json has layers of the kinds {', '.join(kinds)} for multi-token prediction "
            "(mtp_layers_block_type); only attention, moe is supported."
        )
    return replace(
        attending, num_layers=2, moe=(None, *attending.moe), sliding_windows=(None, None),
        attending=frozenset({0}), no_rope_layers=frozenset({0, 1}),
    )  # fmt: skip


def _kinds(named: Sequence[str] | None, pattern: str | None) -> list[str]:
    """The layers' kinds, from a list of names or, if there is none, a pattern of letters."""
    return [_OTHERWISE.get(each, each) for each in named or [_KINDS[letter] for letter in pattern or ""]]


def _mamba2(config: Mapping[str, Any]) -> Mamba2Config:
    """`time_step_min` is only for initializing weights, although Transformers 5.23 limits time steps by it."""
    least, most = (number(each) for each in config.get("time_step_limit") or (0.0, math.inf))
    return Mamba2Config(
        heads=config["mamba_num_heads"], head_dim=config["mamba_head_dim"], groups=config["n_groups"],
        state_size=config["ssm_state_size"], taps=config.get("conv_kernel", 4), bias=bool(config.get("use_bias")),
        convolution_bias=bool(config.get("use_conv_bias", True)),
        time_limits=(least, most), norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
    )  # fmt: skip


def _mixture(config: Mapping[str, Any]) -> MoeConfig:
    return MoeConfig(
        # Transformers 5 may use another name for the number.
        config.get("n_routed_experts") or config["num_local_experts"], config["num_experts_per_tok"],
        config["moe_intermediate_size"], renormalize=bool(config.get("norm_topk_prob", True)),
        shared_size=config["moe_shared_expert_intermediate_size"], scoring="sigmoid", choice_bias=True,
        num_groups=config.get("n_group", 1), chosen_groups=config.get("topk_group", 1),
        scale=float(config.get("routed_scaling_factor", 1.0)), is_gated=False,
        latent_size=config.get("moe_latent_size"),
    )  # fmt: skip
