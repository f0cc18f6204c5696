"""Laguna (Poolside 2026): some layers have a sliding window and a rotation of their own, single layers may have more
query heads, attention's output is multiplied by the softplus of gates, and experts are chosen as in DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_svc.models.config import (
    GateKind,
    LayerHeads,
    ModelConfig,
    MoeConfig,
    base_config,
    local_rotation,
    one_rotation,
)
from quire.errors import StartupError

_SLIDING = "sliding_attention"
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512, "gating": True, "moe_routed_scaling_factor": 1.0,
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "moe_router_logit_softcapping": 0.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        _SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip
_RENAMES = ((r"\.experts\.e_score_correction_bias$", ".gate.e_score_correction_bias"),)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """By default, layers attend to everything, and all but the first have experts.

    Raises:
        StartupError: attention has no gates, or experts weigh their inputs.
    """
    given = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    count, bias = given["num_hidden_layers"], bool(given.get("attention_bias"))
    kinds = given.get("layer_types") or ["full_attention"] * count
    parts = given.get("mlp_layer_types") or ["dense"] + ["sparse"] * (count - 1)
    if given.get("moe_apply_router_weight_on_input"):
        raise StartupError("config.json: moe_apply_router_weight_on_input is true; expected false.")
    moe = MoeConfig(
        given["num_experts"], given["num_experts_per_tok"], given["moe_intermediate_size"], renormalize=True,
        shared_size=given["shared_expert_intermediate_size"], scoring="sigmoid", choice_bias=True,
        scale=given["moe_routed_scaling_factor"], logits_softcap=given["moe_router_logit_softcapping"] or None,
    )  # fmt: skip
    windows = tuple(given["sliding_window"] if kind == _SLIDING else None for kind in kinds)
    queries = given.get("num_attention_heads_per_layer") or [given["num_attention_heads"]] * count
    return base_config(
        one_rotation(given), qkv_bias=bias, output_bias=bias, qk_norm="head", sliding_windows=windows,
        local_rope_parameters=local_rotation(given, 1e4), attention_gates=_gates(given["gating"]), renames=_RENAMES,
        moe=tuple(moe if part == "sparse" else None for part in parts), **_heads(given, windows, queries),
    )  # fmt: skip


def _gates(gating: object) -> GateKind:
    """
    Raises:
        StartupError: there are none.
    """
    if gating is False:
        raise StartupError("config.json: gating is false; expected true, per-head or per-element.")
    return "heads, softplus" if gating in (True, "per-head") else "values, softplus"


def _heads(
    given: Mapping[str, Any], windows: Sequence[int | None], queries: Sequence[int]
) -> dict[str, LayerHeads | dict[int, LayerHeads]]:
    """The heads of layers with a window, as the first of these has them, and those of layers that differ."""
    number, size = given["num_key_value_heads"], given["head_dim"]
    found = [LayerHeads(number, size, each) for each in queries]
    usual = LayerHeads(number, size, given["num_attention_heads"])
    local = next((heads for heads, window in zip(found, windows, strict=True) if window), usual)
    expected = [local if window else usual for window in windows]
    return {
        "local_heads": local,
        "own_heads": {index: heads for index, heads in enumerate(found) if heads != expected[index]},
    }
