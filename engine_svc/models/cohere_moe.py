"""Command with mixtures of experts (Cohere 2026): otherwise like the second generation of dense models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import cohere
from engine_svc.models.config import ModelConfig, MoeConfig, sliding_windows

_DEFAULTS: dict[str, Any] = {"head_dim": 128, "sliding_window": 4096, "prefix_dense_sliding_window_pattern": 1}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layers may be dense. They have their own pattern of windows; if it has none, they rotate nevertheless.

    Norms may be RMS norms.
    """
    given = {**_DEFAULTS, **config}
    count, first = config["num_hidden_layers"], config.get("first_k_dense_replace") or 0
    moe, windows = _mixture(config), _windows(given, first)
    types = config.get("mlp_layer_types") or ["dense"] * first + ["sparse"] * (count - first)
    dense_rotates = given["prefix_dense_sliding_window_pattern"] == 1
    epsilon = config.get("rms_norm_eps")
    return dataclasses.replace(
        cohere.config_of(given),
        intermediate_size=config.get("prefix_dense_intermediate_size") or config["intermediate_size"],
        moe=tuple(moe if each == "sparse" else None for each in types), sliding_windows=windows,
        no_rope_layers=frozenset(
            index for index in range(count)
            if windows[index] is None and not (dense_rotates and types[index] == "dense")
        ),
        **({} if epsilon is None else {"norm": "rms", "norm_eps": epsilon}),
    )  # fmt: skip


def _windows(config: Mapping[str, Any], first: int) -> tuple[int | None, ...]:
    """Sliding windows by layer_types, or else by the patterns of the `first` layers and of the others."""
    if config.get("layer_types"):
        return sliding_windows(config, 1)
    others = {**config, "num_hidden_layers": config["num_hidden_layers"] - first}
    return (
        *sliding_windows({**config, "num_hidden_layers": first}, config["prefix_dense_sliding_window_pattern"]),
        *sliding_windows(others, config.get("sliding_window_pattern") or 4),
    )


def _mixture(config: Mapping[str, Any]) -> MoeConfig:
    """A softmax over the chosen experts' logits equals one over all experts, renormalized over the chosen ones.

    Raises:
        ValueError: experts are chosen, or combined with the shared one, in an unknown way.
    """
    size, shared = config["intermediate_size"], config.get("num_shared_experts") or 0
    scoring = config.get("expert_selection_fn", "softmax")
    way = config.get("shared_expert_combination_strategy", "average")
    if scoring not in ("softmax", "sigmoid") or way not in ("average", "sum"):
        raise ValueError(f"expert_selection_fn {scoring!r} with shared_expert_combination_strategy {way!r}")
    scale = 0.5 if shared and way == "average" else 1.0
    return MoeConfig(
        config.get("num_experts", 8), config.get("num_experts_per_tok", 2), size,
        renormalize=scoring == "softmax" or bool(config.get("norm_topk_prob", True)), scoring=scoring,
        shared_size=size * shared or None, shared_scale=scale, scale=scale,
    )  # fmt: skip
